//! Key templates: `stock:<sku>`, with a Rust expression between `<` and `>`.

mod names;
mod plain;
mod scan;

use proc_macro2::{Group, Ident, TokenStream, TokenTree};
use syn::ext::IdentExt as _;
use syn::parse::{Parse as _, Parser as _};
use syn::{Expr, LitStr};

use crate::krate::ours;

/// A parsed template.
pub(crate) struct Template {
    /// As the user wrote it. Every error about it is reported at its position.
    pub(crate) literal: LitStr,
    /// The text before the first value.
    pub(crate) head: String,
    /// The values, each with the text up to the next one.
    pub(crate) values: Vec<(Expr, String)>,
}

impl Template {
    pub(crate) fn parse(literal: &LitStr) -> syn::Result<Self> {
        let refuse = |message: String| syn::Error::new(literal.span(), message);
        let text = literal.value();
        if text.is_empty() {
            return Err(refuse("the key is empty; give the lock a name".to_owned()));
        }
        let mut template = Self {
            literal: literal.clone(),
            head: String::new(),
            values: Vec::new(),
        };
        let mut rest = text.as_str();
        while let Some(at) = rest.find('<') {
            template.push_text(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('<') {
                template.push_text("<");
                rest = after;
                continue;
            }
            let length = scan::expression(rest).map_err(|error| refuse(error.message(rest)))?;
            let expression = parse_expression(&rest[..length], literal)?;
            if let Some(meant) = scan::operator(rest, length) {
                return Err(refuse(format!(
                    "in `<{meant}>`, the first `>` ends the expression; write `<({meant})>`, or \
                     no space before the `>` if the rest is text"
                )));
            }
            template.values.push((expression, String::new()));
            rest = &rest[length + 1..];
        }
        template.push_text(rest);
        Ok(template)
    }

    /// What all keys of the template have in common: its text, with `<>` for each value. `None` if
    /// it has no value, and so makes only one key.
    pub(crate) fn shape(&self) -> Option<String> {
        if self.values.is_empty() {
            return None;
        }
        let texts = self.values.iter().map(|(_, after)| after);
        let texts: Vec<_> = std::iter::once(&self.head)
            .chain(texts)
            .map(|text| text.replace('<', "<<"))
            .collect();
        Some(texts.join("<>"))
    }

    /// Refuses probable mistakes that the function's arguments reveal.
    pub(crate) fn check(&self, arguments: &[String]) -> syn::Result<()> {
        match plain::complaint(self, arguments) {
            Some(complaint) => Err(self.error(complaint)),
            None => self.refuse_unknown_names(arguments),
        }
    }

    fn refuse_unknown_names(&self, arguments: &[String]) -> syn::Result<()> {
        for (value, _) in &self.values {
            names::for_each(value, &mut |name| {
                let name = name.unraw().to_string();
                if arguments.contains(&name) {
                    return Ok(());
                }
                let known: Vec<_> = arguments.iter().map(|known| format!("`{known}`")).collect();
                let known = match known.as_slice() {
                    [] => "the function has none".to_owned(),
                    [only] => format!("there is {only}"),
                    [known @ .., last] => format!("there are {} and {last}", known.join(", ")),
                };
                Err(self.error(format!(
                    "there is no argument `{name}` for the key; {known}"
                )))
            })?;
        }
        Ok(())
    }

    fn error(&self, message: String) -> syn::Error {
        syn::Error::new(self.literal.span(), message)
    }

    fn push_text(&mut self, text: &str) {
        let last = self
            .values
            .last_mut()
            .map_or(&mut self.head, |(_, after)| after);
        last.push_str(text);
    }
}

/// Gives every token the literal's position, and so its hygiene: names resolve as if they stood
/// where the literal does.
fn parse_expression(text: &str, literal: &LitStr) -> syn::Result<Expr> {
    LitStr::new(text, literal.span())
        .parse_with(TokenStream::parse)
        .and_then(|tokens| syn::parse2(own_members(tokens)))
        .map_err(|error| {
            let hint = hint(text).unwrap_or_else(|| error.to_string());
            let message = format!("`<{text}>` does not hold an expression: {hint}");
            syn::Error::new(literal.span(), message)
        })
}

/// What to write in place of a text that is no expression, where that is known.
fn hint(text: &str) -> Option<String> {
    let text = text.trim();
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let (name, behind) = text.split_at(text.find(|c| !is_of_word(c)).unwrap_or(text.len()));
    let is_keyword = |name: &str| {
        let is_word = Ident::parse_any.parse_str(name).is_ok();
        is_word && syn::parse_str::<Ident>(name).is_err()
    };
    if is_keyword(name) && (behind.is_empty() || behind.starts_with('.')) {
        return Some(format!(
            "`{name}` is a keyword; for an argument `r#{name}`, write `<r#{text}>`"
        ));
    }
    let (value, spec) = text.split_once(':')?;
    // The rest may be anything: a path, or code with a type in it.
    let is_spec = spec.len() <= 8 && !spec.contains([':', ' ', '(']);
    (is_spec && !value.is_empty()).then(|| {
        // The `>` of an alignment has ended the expression.
        let spec = if spec.is_empty() { "…" } else { spec };
        let (value, argument) = match value.chars().all(is_of_word) {
            true => (value, String::new()),
            false => ("", format!(", {value}")),
        };
        format!(
            "there are no format specs; write an expression, such as \
             `<format!(\\\"{{{value}:{spec}}}\\\"{argument})>`"
        )
    })
}

/// Gives the names of fields and methods the hygiene of generated code. They resolve as before, but
/// the compiler does not propose a similar name for them, which would replace the whole literal.
fn own_members(tokens: TokenStream) -> TokenStream {
    // The second dot of a range has a variable after it.
    let mut dots = 0;
    let own = |mut token: TokenTree| {
        match &mut token {
            TokenTree::Group(group) => {
                let span = group.span();
                *group = Group::new(group.delimiter(), own_members(group.stream()));
                group.set_span(span);
            }
            TokenTree::Ident(name) if dots == 1 => name.set_span(ours(name.span())),
            _ => {}
        }
        let is_dot = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '.');
        dots = if is_dot { dots + 1 } else { 0 };
        token
    };
    tokens.into_iter().map(own).collect()
}

#[cfg(test)]
#[path = "../tests/properties/template.rs"]
mod properties;

#[cfg(test)]
mod tests {
    use proc_macro2::Span;
    use quote::ToTokens as _;

    use super::*;

    fn parse(text: &str) -> syn::Result<Template> {
        Template::parse(&LitStr::new(text, Span::call_site()))
    }

    /// The template with its values as `syn` parsed them.
    fn shape(text: &str) -> Vec<String> {
        let template = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut shape = vec![template.head.clone()];
        for (value, after) in &template.values {
            shape.push(value.to_token_stream().to_string().replace(' ', ""));
            shape.push(after.clone());
        }
        shape
    }

    fn error(text: &str) -> String {
        match parse(text) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{text} was accepted"),
        }
    }

    #[test]
    fn text_and_values() {
        assert_eq!(shape("nightly"), ["nightly"]);
        assert_eq!(shape("stock:<sku>"), ["stock:", "sku", ""]);
        assert_eq!(shape("<a><b>"), ["", "a", "", "b", ""]);
        assert_eq!(shape("a:<from>-><to>:b"), ["a:", "from", "->", "to", ":b"]);
        assert_eq!(
            shape("< from > -> < to >>"),
            ["", "from", " -> ", "to", ">"]
        );
        assert_eq!(shape("<a>b>=<c>"), ["", "a", "b>=", "c", ""]);
        assert_eq!(
            shape("order:<self.shop>/<lines[0].id>"),
            ["order:", "self.shop", "/", "lines[0].id", ""]
        );
    }

    #[test]
    fn a_doubled_bracket_is_text() {
        assert_eq!(shape("a<<b"), ["a<b"]);
        assert_eq!(shape("<<<a>"), ["<", "a", ""]);
        assert_eq!(shape("<a><<<b>>"), ["", "a", "<", "b", ">"]);
    }

    #[test]
    fn the_shape_is_the_same_whatever_the_values_are_called() {
        let shape = |text| parse(text).ok().and_then(|template| template.shape());
        assert_eq!(shape("nightly"), None);
        assert_eq!(shape("a<<b>"), None);
        for text in ["acct:<from>", "acct:<self.to[0]>"] {
            assert_eq!(shape(text).as_deref(), Some("acct:<>"));
        }
        assert_eq!(shape("<a><<<b>>:c").as_deref(), Some("<><<<>>:c"));
    }

    #[test]
    fn the_closing_bracket_is_found() {
        for expression in [
            "x.get::<u32>()",
            "x.get::<Vec<Option<u8>>>()",
            "x.get::<fn(u8) -> u8>()",
            "(a > b)",
            "(b >> 4)",
            "x.iter().filter(|n| **n > 3).count()",
            "s.split(\"->\").next().unwrap()",
            "s.split(\"\\\">\").next().unwrap()",
            "s.find('>').is_some()",
            "s.find('\\'').is_some()",
            "s.trim_matches('\"')",
            "s.find(r#\"\">\"#).is_some()",
            "s.find(r\"\\\").is_some()",
            "{ let f = |n: u8| -> u8 { n }; f(1) }",
            "match x { 1 => \"a\", _ => \"b\" }",
            "{<T as Trait>::NAME}",
            "Id::<'a, T>::NAME",
            "Id::<'_, T>::NAME",
        ] {
            let value = expression.replace(' ', "");
            assert_eq!(shape(&format!("k:<{expression}>:e")), ["k:", &value, ":e"]);
        }
        assert_eq!(
            shape("k:< <T as Trait>::NAME>"),
            ["k:", "<TasTrait>::NAME", ""]
        );
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, part) in [
            ("", "the key is empty"),
            ("a:<b", "`<b` is not closed"),
            ("a:<b:<c>", "does not hold an expression"),
            ("a:<>", "`<>` is empty"),
            ("a:< >", "`<>` is empty"),
            ("a:<(b>", "`<(b>` is not closed"),
            ("a:<b)>", "`)` closes nothing"),
            ("a:<(b]>", "`]` closes nothing"),
            ("a:<\"b>", "is not closed"),
            ("a:<b c>", "`<b c>` does not hold an expression"),
            ("a:<b # c>", "`<b # c>` does not hold an expression"),
            (
                "a:<b:?>",
                "no format specs; write an expression, such as `<format!(\\\"{b:?}\\\")>`",
            ),
            ("a:<b:08>", "`<format!(\\\"{b:08}\\\")>`"),
            ("a:< b.c:x >", "`<format!(\\\"{:x}\\\", b.c)>`"),
            (
                "a:<type>",
                "`type` is a keyword; for an argument `r#type`, write `<r#type>`",
            ),
            ("a:<type.id>", "write `<r#type.id>`"),
            ("a:<b: u8 c>", "expression: unexpected token"),
            ("a:<let b>", "expression: expected"),
            ("a:<b >> 4>", "write `<(b >> 4)>`"),
            ("a:<b >= c>", "write `<(b >= c)>`"),
            ("a:<b > c>", "write `<(b > c)>`"),
            ("a:< b > c>:>d", "write `<(b > c)>`"),
            ("a:<b→c>", "`→` has no place"),
            ("a:<b'+c>", "`'` has no place"),
            // What stands before the string only ends with an `r`, so the string is not a raw one.
            (
                "a:<br_r\"\\\">\">",
                "`<br_r\"\\\">\">` does not hold an expression",
            ),
            (
                "a:<bear\"\\\">\">",
                "`<bear\"\\\">\">` does not hold an expression",
            ),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
    }

    fn arguments() -> [String; 4] {
        ["sku", "self", "été", "type"].map(str::to_owned)
    }

    fn check(text: &str) -> Result<(), String> {
        check_with(text, &arguments())
    }

    fn check_without_arguments(text: &str) -> Result<(), String> {
        check_with(text, &[])
    }

    fn check_with(text: &str, arguments: &[String]) -> Result<(), String> {
        let template = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        template.check(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn text_with_the_name_of_an_argument_is_refused() {
        for (text, meant) in [
            ("stock:{sku}", "write `<sku>`"),
            ("stock:<sku>:{self.shop}", "write `<self.shop>`"),
            ("stock:{sku:?}", "write `<sku>`"),
            ("{{sku}}", "write `<sku>`"),
            ("{été}", "write `<été>`"),
            ("{ sku }", "write `<sku>`"),
            ("{&sku.id}", "write `<sku.id>`"),
            ("{(sku.id)}", "write `<sku.id>`"),
            ("{sku.id(0)[1]}", "write `<sku.id(0)[1]>`"),
            ("{Sku::id(sku)}:<sku>", "write `<sku>`"),
            ("{sku)}", "write `<sku>`"),
            (
                "{<été>:sku}",
                "`{<…>:sku}` would name the same lock for every `sku`",
            ),
            ("{type}", "write `<r#type>`"),
            ("${sku}", "`${sku}` would name"),
            ("#{sku}", "`#{sku}` would name"),
            (
                "a:#sku",
                "`#sku` would name the same lock for every `sku`; write `<sku>`",
            ),
            ("a:$sku:<été>", "`$sku` would name"),
            (
                "a:#sku.id.",
                "`#sku.id` would name the same lock for every `sku`; write `<sku.id>`",
            ),
            ("a:#self.shop", "write `<self.shop>`"),
            ("a:$type", "write `<r#type>`"),
            (
                "a:<<sku>>",
                "`<<sku>>` would name the same lock for every `sku`; write `<sku>`",
            ),
            (
                "a:sku>",
                "`sku>` would name the same lock for every `sku`; write `<sku>`",
            ),
            ("a:self.shop>:<sku>", "write `<self.shop>`"),
            ("com.shop.sku>", "write `<sku>`"),
            ("<<self.shop>>", "write `<self.shop>`"),
            ("<sku>type>", "write `<r#type>`"),
        ] {
            let error = check(text).expect_err(text);
            assert!(error.contains(meant), "{text}: {error}");
        }
    }

    #[test]
    fn braces_of_format_strings_are_refused() {
        for text in ["{}", "a:{}:<sku>", "{ }", "{0}", "{:?}", "{0:>8}"] {
            let error = check(text).expect_err(text);
            assert!(error.contains("stands for no argument"), "{text}: {error}");
            assert!(error.contains("such as `<sku>`"), "{text}: {error}");
        }
    }

    #[test]
    fn braces_in_a_template_without_values_are_refused() {
        for text in [
            "a:{skuu}",
            "{ skuu }",
            "{cart}:all",
            "a:{sku_id:?}",
            "{{user}}",
        ] {
            let error = check(text).expect_err(text);
            assert!(error.contains("for every call"), "{text}: {error}");
            assert_eq!(check_without_arguments(text), Ok(()));
        }
    }

    #[test]
    fn other_text_is_text() {
        for text in [
            // What Redis Cluster reads, to keep keys together.
            "{<sku>}:a",
            "cart:{<self.shop>}:<sku>",
            "{cart}:<sku>",
            "{my cart}:<sku>",
            "{shop-<self.shop>}:<sku>",
            "{skunk}:<sku>",
            "{",
            "{sku",
            "sku}",
            "}{:<sku>",
            "{-}",
            "#",
            "a#1:$",
            "#skunk",
            "#<sku>",
            "a $<sku>",
            // As is the closing bracket.
            "a:<sku>>",
            "<sku>->",
            "<<sku>:x",
            "<<<sku>>>",
            "sku->",
            "sku.>",
            "skunk>",
            ">",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for text in ["{}", "{0}", "{sku}", "#sku", "$sku"] {
            assert_eq!(check_without_arguments(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn the_way_out_leads_out() {
        for (text, way_out) in [
            ("a:{}", r#"String::from("a:{}")"#),
            ("a:{\"b\"}", r#"String::from("a:{\"b\"}")"#),
            ("{cart}:<<a>", r#"String::from("{cart}:<a>")"#),
            ("{ sku }", r#"String::from("{ sku }")"#),
            ("#sku", r##"String::from("#sku")"##),
            ("a:sku>", r#"String::from("a:sku>")"#),
        ] {
            let error = check(text).expect_err(text);
            let way_out_is = format!("as an expression, `{way_out}`");
            assert!(error.contains(&way_out_is), "{text}: {error}");
            let key = syn::parse_str(way_out).and_then(crate::key::Key::new);
            let key = key.unwrap_or_else(|error| panic!("{way_out}: {error}"));
            assert!(key.check(&arguments()).is_ok(), "{way_out}");
        }
        for (text, instead, sign) in [
            ("a:{}:<sku>", "a:<\"{\">}:<sku>", '{'),
            ("a:{sku}", "a:<\"{\">sku}", '{'),
            ("<<sku>:{}", "<<sku>:<\"{\">}", '{'),
            ("#sku:<été>", "<\"#\">sku:<été>", '#'),
            ("$sku:<été>", "<\"$\">sku:<été>", '$'),
            ("sku>:<été>", "sku<\">\">:<été>", '>'),
            ("<<sku>>", "<<sku<\">\">>", '>'),
        ] {
            let error = check(text).expect_err(text);
            let way_out = format!("write `<\\\"{sign}\\\">` for its `{sign}`");
            assert!(error.contains(&way_out), "{text}: {error}");
            assert_eq!(check(instead), Ok(()), "{instead}");
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        for text in [
            "<name>",
            "<-name>",
            "<(name.x[0])>",
            "<sku + name>",
            "<&name.f()?>",
            "<sku[name]>",
            "<name.await>",
            "<name as u8>",
        ] {
            let error = check(text).expect_err(text);
            assert!(error.contains("no argument `name`"), "{text}: {error}");
            assert!(
                error.contains("`sku`, `self`, `été` and `type`"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn names_that_may_not_be_arguments_are_let_be() {
        for text in [
            "<self.sku>",
            "<r#type>",
            "<NAME>",
            "<Name::NAME>",
            "<name()>",
            "<name::<u8>(other)>",
            "<sku.map(name)>",
            "<name!()>",
            "<{ let name = 1; name }>",
            "<(|name: u8| name)(1)>",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }
}
