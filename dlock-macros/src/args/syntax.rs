//! One argument as written: `name` or `name = value`.

use proc_macro2::Ident;
use quote::ToTokens as _;
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::{Expr, Lit, Token};

use crate::key::ungrouped;

/// Every argument, in the order of the documentation.
const NAMES: [&str; 15] = [
    "key", "ttl", "wait", "try", "timeout", "mode", "permits", "renew", "max_hold", "min_hold",
    "once", "on_error", "on_lost", "fenced", "crate",
];

pub(super) struct Argument {
    pub(super) name: Ident,
    value: Option<Expr>,
}

impl Parse for Argument {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(Lit) {
            return Err(input.error("every argument has a name; for the key, write `key = …`"));
        }
        // Not `parse::<Ident>`: `try` and `crate` are keywords.
        let name = input.call(Ident::parse_any)?;
        let mut argument = Self { name, value: None };
        if !NAMES.iter().any(|known| argument.name == known) {
            // Before the value is read, which may not be an expression at all.
            return Err(argument.unknown());
        }
        if input.parse::<Option<Token![=]>>()?.is_some() {
            if input.is_empty() || input.peek(Token![,]) {
                return Err(argument.error(format!("`{} =` lacks its value", argument.name)));
            }
            argument.value = Some(input.parse()?);
        } else if !input.is_empty() && !input.peek(Token![,]) {
            return Err(input.error(format!("expected `{} = …` or a `,`", argument.name)));
        }
        Ok(argument)
    }
}

impl Argument {
    /// The value of an argument that needs one.
    pub(super) fn value(&self, example: &str) -> syn::Result<&Expr> {
        self.value.as_ref().ok_or_else(|| {
            let name = &self.name;
            self.error(format!(
                "`{name}` needs a value, such as `{name} = {example}`"
            ))
        })
    }

    /// Refuses the value of an argument that takes none.
    pub(super) fn flag(&self) -> syn::Result<()> {
        let Some(value) = &self.value else {
            return Ok(());
        };
        let name = &self.name;
        let literal = match ungrouped(value) {
            Expr::Lit(literal) => Some(&literal.lit),
            _ => None,
        };
        let hint = match literal {
            Some(Lit::Bool(_)) => format!("write `{name}` alone, or leave it out"),
            Some(Lit::Str(time)) if name == "wait" || name == "try" => format!(
                "to give up after a time, write `timeout = {}`",
                time.to_token_stream()
            ),
            _ => format!("write `{name}` alone"),
        };
        let message = format!("`{name}` takes no value; {hint}");
        Err(syn::Error::new_spanned(value, message))
    }

    pub(super) fn unknown(&self) -> syn::Error {
        let known = NAMES.map(|name| format!("`{name}`")).join(", ");
        self.error(format!(
            "there is no argument `{}`; there are {known}",
            self.name
        ))
    }

    pub(super) fn error(&self, message: String) -> syn::Error {
        syn::Error::new(self.name.span(), message)
    }
}
