//! Strings in a key expression that look like a template and are none.

use quote::ToTokens as _;
use syn::punctuated::Punctuated;
use syn::{Block, Expr, Lit, LitStr, Stmt, Token};

use crate::mentions::{Mentions, holds};

/// Refuses an expression with a string that looks like a template but is none: it would name the
/// same lock for every value of the argument.
pub(crate) fn refuse(expression: &Expr, arguments: &[String]) -> syn::Result<()> {
    let mut found = None;
    // Such a string is a key as it is, whatever else the expression mentions.
    for_each_value(expression, &mut |text| {
        let name = arguments
            .iter()
            .find(|name| holds(text, '<', name) || holds(text, '{', name));
        if let Some(name) = name {
            found.get_or_insert_with(|| error(text, name));
        }
    });
    let mentions = Mentions::of(expression.to_token_stream());
    let not_mentioned = arguments.iter().filter(|name| !mentions.contains(name));
    let mut lookalikes =
        not_mentioned.filter_map(|name| mentions.lookalike(name).map(|text| error(text, name)));
    match found.or_else(|| lookalikes.next()) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn error(text: &LitStr, name: &str) -> syn::Error {
    syn::Error::new(
        text.span(),
        format!(
            "this is plain text, as the key is an expression: it would name the same lock for \
             every `{name}`; write the key as one literal, `key = \"…<{name}>…\"`, or use \
             `format!(\"…{{{name}}}…\")`"
        ),
    )
}

/// Calls `with` on each string that may be the value of the expression as it is, or one of its
/// elements. What a call is given may be a template for the function, and is none of these.
fn for_each_value(expression: &Expr, with: &mut impl FnMut(&LitStr)) {
    match expression {
        Expr::Lit(literal) => {
            if let Lit::Str(text) = &literal.lit {
                with(text);
            }
        }
        Expr::If(choice) => {
            for_the_end(&choice.then_branch, with);
            if let Some((_, otherwise)) = &choice.else_branch {
                for_each_value(otherwise, with);
            }
        }
        Expr::Match(choice) => {
            for arm in &choice.arms {
                for_each_value(&arm.body, with);
            }
        }
        Expr::Block(block) => for_the_end(&block.block, with),
        Expr::Unsafe(block) => for_the_end(&block.block, with),
        Expr::Paren(paren) => for_each_value(&paren.expr, with),
        Expr::Group(group) => for_each_value(&group.expr, with),
        Expr::Reference(reference) => for_each_value(&reference.expr, with),
        Expr::Index(index) => for_each_value(&index.expr, with),
        Expr::Array(array) => {
            for element in &array.elems {
                for_each_value(element, with);
            }
        }
        Expr::Macro(list) if list.mac.path.is_ident("vec") => {
            let elements = Punctuated::<Expr, Token![,]>::parse_terminated;
            for element in list.mac.parse_body_with(elements).iter().flatten() {
                for_each_value(element, with);
            }
        }
        Expr::MethodCall(call) if converts(&call.method.to_string()) => {
            for_each_value(&call.receiver, with);
        }
        // `String::from("…")`, or another type's.
        Expr::Call(call) => {
            let Expr::Path(function) = &*call.func else {
                return;
            };
            let name = function.path.segments.last();
            if name.is_some_and(|name| name.ident == "from") {
                for argument in &call.args {
                    for_each_value(argument, with);
                }
            }
        }
        _ => {}
    }
}

fn for_the_end(block: &Block, with: &mut impl FnMut(&LitStr)) {
    if let Some(Stmt::Expr(end, None)) = block.stmts.last() {
        for_each_value(end, with);
    }
}

/// Whether the method gives the same text as another type.
fn converts(method: &str) -> bool {
    matches!(
        method,
        "to_owned" | "to_string" | "into" | "clone" | "to_vec"
    )
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn is_refused(expression: &Expr) -> bool {
        let arguments = ["shop", "sku"].map(str::to_owned);
        refuse(expression, &arguments).is_err()
    }

    #[test]
    fn a_string_that_is_the_value_is_refused_whatever_else_is_mentioned() {
        for expression in [
            parse_quote!(if f(sku) { "a:{sku}" } else { "b" }),
            parse_quote!(if f(sku) { "b" } else { "a:<sku.id>" }),
            parse_quote!(if f(sku) {
                "b"
            } else if g(sku) {
                "a:<sku>"
            } else {
                "c"
            }),
            parse_quote!(match sku {
                1 => "b",
                _ => "a:{sku}",
            }),
            parse_quote!({
                f(sku);
                "a:{sku}"
            }),
            parse_quote!(unsafe {
                f(sku);
                "a:{sku}"
            }),
            parse_quote!([f(sku), ("a:{sku}".to_owned())]),
            parse_quote!(&[f(sku), "a:{sku}".into()][..]),
            parse_quote!(vec![f(sku), "a:{sku}".to_string()]),
            parse_quote!([f(sku), String::from("a:{sku}")].to_vec()),
            parse_quote!([f(sku), "a:{sku}"].clone()),
        ] {
            assert!(is_refused(&expression), "{}", expression.to_token_stream());
        }
    }

    #[test]
    fn other_strings_are_refused_only_where_nothing_mentions_the_argument() {
        for expression in [
            parse_quote!(TEMPLATE.replace("<sku>", sku)),
            parse_quote!("a:<sku>".replace("<sku>", sku)),
            parse_quote!(fill("a:{sku}", sku)),
            parse_quote!(vec![format!("a:{sku}")]),
            parse_quote!(if sku == "<sku>" { "a" } else { "b" }),
            parse_quote!(match sku {
                "{sku}" => "a",
                _ => "b",
            }),
            parse_quote!({
                let text = "<sku>";
                f(sku, text)
            }),
            parse_quote!(["a:<skunk>", sku]),
        ] {
            assert!(!is_refused(&expression), "{}", expression.to_token_stream());
        }
        for expression in [
            parse_quote!(fill("a:{sku}")),
            parse_quote!("a:{sku}".trim()),
            parse_quote!(fill("a:<sku>:<shop>", shop)),
        ] {
            assert!(is_refused(&expression), "{}", expression.to_token_stream());
        }
    }
}
