//! Property tests with any text in the place of a template.

use proc_macro2::Span;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use quote::ToTokens as _;
use syn::LitStr;

use super::Template;

/// Characters that have a meaning to the template parser, or to the lexer that it uses.
const PIECES: &[&str] = &[
    "<",
    ">",
    "<<",
    ">>",
    "<sku>",
    "<self.shop>",
    "::<",
    "::",
    "->",
    "=>",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "{sku}",
    "\"",
    "'",
    "'a",
    "'a'",
    "b'",
    "r\"",
    "r#\"",
    "\"#",
    "c\"",
    "#",
    "r#",
    "\\",
    "\\\"",
    "\\u{",
    "//",
    "/*",
    "*/",
    "///",
    "0x",
    "1e",
    "1.",
    "_",
    "sku",
    "self",
    ".",
    ",",
    ";",
    ":",
    "$",
    "`",
    "%",
    "&",
    "|",
    "?",
    "!",
    " ",
    "\n",
    "\0",
    "é",
    "\u{202e}",
    "\u{feff}",
    "\u{301}",
    "await",
    "as",
    "match",
];

fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => select(PIECES).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// The text of a template, with its meaning and as it is written.
fn plain_text() -> impl Strategy<Value = (String, String)> {
    let text = vec(
        select(&["a", ":", "<", ">", "%", "é", "->", "\"", " "][..]),
        0..4,
    );
    text.prop_map(|pieces| {
        let text = pieces.concat();
        let written = text.replace('<', "<<");
        (text, written)
    })
}

/// Expressions, as `syn` displays them.
fn expression() -> impl Strategy<Value = &'static str> {
    select(
        &[
            "sku",
            "self.shop",
            "lines[0].id",
            "x.get::<Vec<u8>>()",
            "(a>b)",
            "s.split(\"->\").next()",
            "s.find('>')",
        ][..],
    )
}

fn read(text: &str) -> syn::Result<Template> {
    Template::parse(&LitStr::new(text, Span::call_site()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_a_template_or_an_error_that_says_why(text in any_text()) {
        let checked = read(&text).and_then(|template| {
            let arguments = ["sku", "self"].map(str::to_owned);
            template.check(&arguments)?;
            Ok(template.shape())
        });
        if let Err(error) = checked {
            prop_assert!(!error.to_string().is_empty());
            prop_assert!(error.to_compile_error().to_string().contains("compile_error"));
        }
    }

    #[test]
    fn what_is_put_together_is_taken_apart_again(
        head in plain_text(),
        values in vec((expression(), plain_text()), 0..4),
    ) {
        let written = values.iter().fold(head.1.clone(), |text, (value, after)| {
            format!("{text}<{value}>{}", after.1)
        });
        if written.is_empty() {
            return Ok(());
        }
        let template = read(&written).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(&template.head, &head.0);
        let found: Vec<_> = template.values.iter().map(|(value, after)| {
            (value.to_token_stream().to_string().replace(' ', ""), after.clone())
        }).collect();
        let expected: Vec<_> = values.iter().map(|(value, after)| {
            ((*value).to_owned(), after.0.clone())
        }).collect();
        prop_assert_eq!(found, expected);
    }
}
