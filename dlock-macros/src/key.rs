//! The `key` argument: a template, an expression, or an array of them.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Expr, ExprArray, Lit, UnOp};

use crate::krate::{Crate, ours};
use crate::lookalikes;
use crate::mentions::Mentions;
use crate::source;
use crate::template::Template;

/// The names of the lock, or of the locks.
pub(crate) enum Key {
    One(Part),
    Many(Vec<Part>),
}

/// What is known of one name at compile time.
pub(crate) struct Name {
    pub(crate) written: String,
    /// [`Template::shape`].
    pub(crate) shape: Option<String>,
    /// Whether it is a constant, with a text that only the runtime sees.
    pub(crate) is_constant: bool,
}

/// One name.
pub(crate) enum Part {
    Template(Template),
    Expression(Expr),
}

impl Key {
    pub(crate) fn new(value: Expr) -> syn::Result<Self> {
        let Expr::Array(array) = ungrouped(&value) else {
            return Part::new(value).map(Self::One);
        };
        if array.elems.is_empty() {
            return Err(syn::Error::new_spanned(
                array,
                "no key is given; name at least one lock",
            ));
        }
        let parts = parts(array)?;
        if parts.iter().any(|part| matches!(part, Part::Template(_))) {
            return Ok(Self::Many(parts));
        }
        // An array of expressions is a key as it is, of any type.
        Ok(Self::One(Part::Expression(value)))
    }

    /// Whether the key names more than one lock, as far as the tokens show.
    pub(crate) fn is_several(&self) -> bool {
        match self {
            Self::One(Part::Expression(value)) => {
                matches!(ungrouped(value), Expr::Array(array) if array.elems.len() > 1)
            }
            Self::One(Part::Template(_)) => false,
            Self::Many(parts) => parts.len() > 1,
        }
    }

    /// The names as written, or the expressions that make them. Suitable for spans and metrics,
    /// since there are few different ones.
    pub(crate) fn written(&self) -> String {
        let written: Vec<_> = match self {
            Self::One(Part::Expression(value)) => match ungrouped(value) {
                Expr::Array(array) => array.elems.iter().map(text).collect(),
                value => vec![text(value)],
            },
            _ => self.parts().iter().map(Part::written).collect(),
        };
        written.join(", ")
    }

    /// What is known of each name. Empty if [`written`](Self::written) says everything. A path that
    /// begins with one of the `arguments` is no constant.
    pub(crate) fn names(&self, arguments: &[String]) -> Vec<Name> {
        let names: Vec<_> = match self {
            Self::One(Part::Expression(value)) => {
                let elements = match ungrouped(value) {
                    Expr::Array(array) => array.elems.iter().collect(),
                    value => vec![value],
                };
                let name = |value| Name {
                    written: self.written(),
                    shape: None,
                    is_constant: is_constant(value, arguments),
                };
                elements.into_iter().map(name).collect()
            }
            _ => self
                .parts()
                .iter()
                .map(|part| part.name(arguments))
                .collect(),
        };
        let is_several = matches!(self, Self::Many(_)) && names.len() > 1;
        let says_more = |name: &Name| name.shape.is_some() || name.is_constant;
        if is_several || names.iter().any(says_more) {
            names
        } else {
            Vec::new()
        }
    }

    /// Refuses probable mistakes that the function's arguments reveal.
    pub(crate) fn check(&self, arguments: &[String]) -> syn::Result<()> {
        self.parts().iter().try_for_each(|part| match part {
            Part::Template(template) => template.check(arguments),
            Part::Expression(expression) => lookalikes::refuse(expression, arguments),
        })
    }

    /// What the expressions of the key mention, including those in templates.
    pub(crate) fn mentions(&self) -> Mentions {
        let mut mentions = self.consumable();
        for part in self.parts() {
            if let Part::Template(template) = part {
                for (value, _) in &template.values {
                    mentions.add(value.to_token_stream());
                }
            }
        }
        mentions
    }

    /// What the key may consume: a template borrows, an expression may move.
    pub(crate) fn consumable(&self) -> Mentions {
        let mut mentions = Mentions::default();
        for part in self.parts() {
            if let Part::Expression(expression) = part {
                mentions.add(expression.to_token_stream());
            }
        }
        mentions
    }

    /// An expression that makes the key.
    pub(crate) fn tokens(&self, krate: &Crate) -> TokenStream {
        match self {
            Self::One(part) => part.tokens(krate, "lock_key"),
            Self::Many(parts) => {
                let span = Span::mixed_site();
                let private = krate.private(span);
                let names = parts.iter().map(|part| part.tokens(krate, "lock_name"));
                quote_spanned!(span=> #private::lock_key([#(#names),*]))
            }
        }
    }

    fn parts(&self) -> &[Part] {
        match self {
            Self::One(part) => std::slice::from_ref(part),
            Self::Many(parts) => parts,
        }
    }
}

impl Part {
    fn new(value: Expr) -> syn::Result<Self> {
        match ungrouped(&value) {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Template::parse(text).map(Self::Template),
                other => Err(syn::Error::new(
                    other.span(),
                    "a key is a string template, such as `\"stock:<sku>\"`, or an expression",
                )),
            },
            _ => Ok(Self::Expression(value)),
        }
    }

    /// The name, passed to one of the runtime's conversions.
    fn tokens(&self, krate: &Crate, conversion: &str) -> TokenStream {
        let (span, value) = match self {
            Self::Template(template) => (template.literal.span(), template_tokens(template, krate)),
            Self::Expression(expression) => (expression.span(), expression.to_token_stream()),
        };
        let span = ours(span);
        let private = krate.private(span);
        let conversion = Ident::new(conversion, span);
        quote_spanned!(span=> #private::#conversion(#value))
    }

    fn written(&self) -> String {
        match self {
            Self::Template(template) => template.literal.value(),
            Self::Expression(expression) => text(ungrouped(expression)),
        }
    }

    fn name(&self, arguments: &[String]) -> Name {
        let (shape, is_constant) = match self {
            Self::Template(template) => (template.shape(), false),
            Self::Expression(value) => (None, is_constant(value, arguments)),
        };
        Name {
            written: self.written(),
            shape,
            is_constant,
        }
    }
}

/// Whether the expression is the path of something in capitals, as constants and statics are, or
/// what such a path refers to.
fn is_constant(value: &Expr, arguments: &[String]) -> bool {
    let path = match ungrouped(value) {
        Expr::Path(path) => path,
        Expr::Reference(reference) => return is_constant(&reference.expr, arguments),
        Expr::Unary(unary) if matches!(unary.op, UnOp::Deref(_)) => {
            return is_constant(&unary.expr, arguments);
        }
        _ => return false,
    };
    let is_argument = path
        .path
        .get_ident()
        .is_some_and(|name| arguments.iter().any(|argument| name == argument));
    let name = path.path.segments.last();
    let name = name.map(|last| last.ident.to_string()).unwrap_or_default();
    !is_argument && name.contains(char::is_uppercase) && !name.contains(char::is_lowercase)
}

fn text(expression: &Expr) -> String {
    source::text(expression.to_token_stream())
}

fn parts(array: &ExprArray) -> syn::Result<Vec<Part>> {
    array.elems.iter().cloned().map(Part::new).collect()
}

/// An expression that makes a string.
fn template_tokens(template: &Template, krate: &Crate) -> TokenStream {
    let head = &template.head;
    let Some(last) = template.values.len().checked_sub(1) else {
        return quote!(#head);
    };
    let span = ours(template.literal.span());
    let private = krate.private(span);
    let values = template
        .values
        .iter()
        .enumerate()
        .map(|(index, (value, after))| {
            let is_last = index == last;
            // A block instead of parentheses would move the value.
            quote_spanned!(span=> .value(&(#value), #after, #is_last))
        });
    quote_spanned!(span=> #private::KeyTemplate::new(#head)#(#values)*.finish())
}

/// The expression without parentheses and without the invisible brackets that `macro_rules!` puts
/// around its arguments.
pub(crate) fn ungrouped(expression: &Expr) -> &Expr {
    match expression {
        Expr::Group(group) => ungrouped(&group.expr),
        Expr::Paren(paren) => ungrouped(&paren.expr),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn key(value: Expr) -> Key {
        Key::new(value).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_key_has_a_name_that_is_known_when_compiling() {
        let written = |value| key(value).written();
        assert_eq!(written(parse_quote!("a:<id>")), "a:<id>");
        assert_eq!(written(parse_quote!(("a<<b"))), "a<<b");
        assert_eq!(written(parse_quote!(["a:<id>", "b"])), "a:<id>, b");
        assert_eq!(written(parse_quote!(["a:<id>", name()])), "a:<id>, name()");
        assert_eq!(written(parse_quote!([first, &second])), "first, &second");
        assert_eq!(written(parse_quote!((account_key(id)))), "account_key(id)");
    }

    /// What the key says of its names in a function with the arguments `id` and `ID`.
    fn names(value: Expr) -> Vec<String> {
        let arguments = ["id", "ID"].map(str::to_owned);
        let shown = |name: Name| {
            let constant = if name.is_constant { "constant" } else { "" };
            format!("{} {:?} {constant}", name.written, name.shape)
        };
        let names = key(value).names(&arguments).into_iter().map(shown);
        names.map(|name| name.trim_end().to_owned()).collect()
    }

    #[test]
    fn only_templates_with_values_have_a_shape() {
        assert_eq!(names(parse_quote!("a:<id>")), ["a:<id> Some(\"a:<>\")"]);
        assert_eq!(
            names(parse_quote!(["a", "b:<id>", name])),
            ["a None", "b:<id> Some(\"b:<>\")", "name None"]
        );
        assert!(names(parse_quote!("a")).is_empty());
        assert!(names(parse_quote!(account_key("a:<id>"))).is_empty());
        assert!(names(parse_quote!([first, second])).is_empty());
    }

    #[test]
    fn paths_in_capitals_are_constants() {
        assert_eq!(names(parse_quote!(KEY)), ["KEY None constant"]);
        assert_eq!(
            names(parse_quote!((keys::STOCK_2))),
            ["keys::STOCK_2 None constant"]
        );
        assert_eq!(
            names(parse_quote!([KEY, "a"])),
            ["KEY None constant", "a None"]
        );
        assert_eq!(
            names(parse_quote!([KEY, id])),
            ["KEY, id None constant", "KEY, id None"]
        );
        assert_eq!(names(parse_quote!(&*KEY)), ["&*KEY None constant"]);
        assert_eq!(names(parse_quote!(*(&KEY))), ["*(&KEY) None constant"]);
        for other in [
            parse_quote!(ID),
            parse_quote!(&ID),
            parse_quote!(-KEY),
            parse_quote!(id),
            parse_quote!(Key),
            parse_quote!(KEY.to_owned()),
            parse_quote!(KEY(id)),
            parse_quote!(self.KEY),
            parse_quote!(_1),
        ] {
            let shown = quote!(#other).to_string();
            assert!(names(other).is_empty(), "{shown}");
        }
    }
}
