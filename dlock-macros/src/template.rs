//! Key templates: `stock:<sku>`, with a Rust expression between `<` and `>`.

mod scan;

use syn::parse::Parse as _;
use syn::{Expr, LitStr};

/// A template, taken apart.
pub(crate) struct Template {
    /// As the user wrote it: the place of every error about it.
    pub(crate) literal: LitStr,
    /// The text in front of the first value.
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
            template.values.push((expression, String::new()));
            rest = &rest[length + 1..];
        }
        template.push_text(rest);
        Ok(template)
    }

    /// The pieces of plain text, in order.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.head.as_str()).chain(self.values.iter().map(|(_, text)| text.as_str()))
    }

    /// Refuses `{name}` where `<name>` was surely meant: braces are plain text,
    /// and the lock would have the same name whatever the argument.
    pub(crate) fn refuse_braces(&self, is_argument: impl Fn(&str) -> bool) -> syn::Result<()> {
        for text in self.texts() {
            for (at, _) in text.match_indices('{') {
                let inside = &text[at + 1..];
                let name = inside
                    .split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next();
                let Some(name) = name.filter(|name| is_argument(name)) else {
                    continue;
                };
                let Some(end) = inside.find('}') else {
                    continue;
                };
                let written = &inside[..end];
                // A format spec (`{id:>8}`) has no place between `<` and `>`.
                let meant = written.split(':').next().unwrap_or(name).trim_end();
                return Err(syn::Error::new(
                    self.literal.span(),
                    format!(
                        "braces are plain text in a key: `{{{written}}}` would name the same \
                         lock for every `{name}`; write `<{meant}>`"
                    ),
                ));
            }
        }
        Ok(())
    }

    fn push_text(&mut self, text: &str) {
        let last = self
            .values
            .last_mut()
            .map_or(&mut self.head, |(_, after)| after);
        last.push_str(text);
    }
}

/// Gives every token the literal's place, and with it the literal's hygiene:
/// names resolve as if they stood where the literal does.
fn parse_expression(text: &str, literal: &LitStr) -> syn::Result<Expr> {
    LitStr::new(text, literal.span())
        .parse_with(Expr::parse)
        .map_err(|error| {
            syn::Error::new(
                literal.span(),
                format!("`<{text}>` does not hold an expression: {error}"),
            )
        })
}

#[cfg(test)]
mod tests {
    use proc_macro2::Span;
    use quote::ToTokens as _;

    use super::*;

    fn parse(text: &str) -> syn::Result<Template> {
        Template::parse(&LitStr::new(text, Span::call_site()))
    }

    /// The template with its values as `syn` understood them.
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
    fn the_closing_bracket_is_found() {
        for expression in [
            "x.get::<u32>()",
            "x.get::<Vec<Option<u8>>>()",
            "(a > b)",
            "x.iter().filter(|n| **n > 3).count()",
            "s.split(\"->\").next().unwrap()",
            "s.split(\"\\\">\").next().unwrap()",
            "s.find('>').is_some()",
            "s.find('\\'').is_some()",
            "s.trim_matches('\"')",
            "s.find(r#\"\">\"#).is_some()",
            "{ let f = |n: u8| -> u8 { n }; f(1) }",
            "match x { 1 => \"a\", _ => \"b\" }",
            "{<T as Trait>::NAME}",
            "Id::<'a, T>::NAME",
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
            ("a:<b→c>", "`→` has no place"),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
    }

    fn braces(text: &str) -> Result<(), String> {
        let template = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let known = |name: &str| matches!(name, "sku" | "self" | "été");
        template
            .refuse_braces(known)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn braces_around_an_argument_are_refused() {
        for (text, meant) in [
            ("stock:{sku}", "write `<sku>`"),
            ("stock:<sku>:{self.shop}", "write `<self.shop>`"),
            ("stock:{sku:?}", "write `<sku>`"),
            ("{{sku}}", "write `<sku>`"),
            ("{été}", "write `<été>`"),
        ] {
            let error = braces(text).expect_err(text);
            assert!(error.contains(meant), "{text}: {error}");
        }
    }

    #[test]
    fn other_braces_are_text() {
        for text in [
            "{<sku>}:a",
            "{user}",
            "{}",
            "{",
            "{sku",
            "{skunk}",
            "{ sku }",
        ] {
            assert_eq!(braces(text), Ok(()), "{text}");
        }
    }
}
