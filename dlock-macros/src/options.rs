//! How the lock is taken: the options that are known at compile time.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, format_ident, quote, quote_spanned};
use syn::Expr;
use syn::spanned::Spanned as _;

use crate::args::number;
use crate::key::{Key, ungrouped};
use crate::krate::Crate;

/// The options in the arguments; `None` and `false` leave the runtime's default.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) ttl: Option<Duration>,
    pub(crate) patience: Option<Patience>,
    pub(crate) mode: Option<Variant>,
    pub(crate) permits: Option<Expr>,
    pub(crate) renew: Option<bool>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) once: Option<Duration>,
    pub(crate) on_lost: Option<Variant>,
    pub(crate) fenced: bool,
}

/// How long to wait.
#[derive(Clone, Copy)]
pub(crate) enum Patience {
    Wait,
    Try,
    Within(Duration),
}

/// The name of a variant of one of the runtime's enums.
pub(crate) type Variant = &'static str;

impl Options {
    /// The expression that may consume an argument. The name of an argument or of a field does not,
    /// since numbers are copied.
    pub(crate) fn consumable(&self) -> Option<&Expr> {
        let is_name =
            |permits: &&Expr| matches!(ungrouped(permits), Expr::Path(_) | Expr::Field(_));
        self.permits.as_ref().filter(|permits| !is_name(permits))
    }

    /// The statement to put first, and a reference to the runtime's `Options`. They are a constant
    /// except for the number of permits. `arguments` are those of the function.
    pub(crate) fn tokens(
        &self,
        krate: &Crate,
        key: &Key,
        arguments: &[String],
    ) -> (TokenStream, TokenStream) {
        let span = Span::mixed_site();
        let private = krate.private(span);
        let mut fields = Vec::new();
        let mut set = |name: &str, value: TokenStream| {
            let name = format_ident!("{name}", span = span);
            fields.push(quote_spanned!(span=> #name: #value));
        };
        let template = key.written();
        set("template", quote!(#template));
        let names = key.names(arguments);
        if !names.is_empty() {
            let parts = names.iter().map(|name| {
                let written = &name.written;
                let shape = name.shape.as_deref().unwrap_or_default();
                let arguments = if name.is_constant { arguments } else { &[] };
                quote_spanned! {span=>
                    #private::Part {
                        template: #written,
                        shape: #shape,
                        arguments: &[#(#arguments),*],
                    }
                }
            });
            set(
                "shapes",
                quote_spanned!(span=> #private::Shapes::Known(&[#(#parts),*])),
            );
        }
        for (name, duration) in [
            ("ttl", self.ttl),
            ("max_hold", self.max_hold),
            ("min_hold", self.min_hold),
            ("once", self.once),
        ] {
            if let Some(duration) = duration {
                let duration = duration_tokens(duration);
                set(
                    name,
                    quote_spanned!(span=> ::core::option::Option::Some(#duration)),
                );
            }
        }
        if let Some(patience) = self.patience {
            let variant = match patience {
                Patience::Wait => quote_spanned!(span=> Wait),
                Patience::Try => quote_spanned!(span=> Try),
                Patience::Within(duration) => {
                    let duration = duration_tokens(duration);
                    quote_spanned!(span=> Within(#duration))
                }
            };
            set(
                "patience",
                quote_spanned!(span=> #private::Patience::#variant),
            );
        }
        for (name, kind, variant) in [
            ("mode", "Mode", self.mode),
            ("on_lost", "OnLost", self.on_lost),
        ] {
            if let Some(variant) = variant {
                let kind = format_ident!("{kind}", span = span);
                let variant = format_ident!("{variant}", span = span);
                set(name, quote_spanned!(span=> #private::#kind::#variant));
            }
        }
        if let Some(renew) = self.renew {
            set("renew", quote!(#renew));
        }
        if self.fenced {
            set("fenced", quote!(true));
        }
        // A `const` block and not an item: the body could see an item.
        let constant = quote_spanned! {span=>
            const { &#private::Options { #(#fields,)* ..#private::Options::new() } }
        };
        let Some(permits) = &self.permits else {
            return (TokenStream::new(), constant);
        };
        // A bare number would be an `i32`, which cannot hold every `u32`.
        let permits = match number(permits) {
            Some(most) => most.into_token_stream(),
            None => permits.into_token_stream(),
        };
        let with_permits = quote_spanned!(permits.span()=> #private::with_permits);
        let statement = quote_spanned! {span=>
            let __dlock_options = #with_permits(#constant, #permits);
        };
        (statement, quote_spanned!(span=> &__dlock_options))
    }
}

fn duration_tokens(duration: Duration) -> TokenStream {
    let seconds = duration.as_secs();
    let nanos = duration.subsec_nanos();
    quote_spanned!(Span::mixed_site()=> ::core::time::Duration::new(#seconds, #nanos))
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn what_is_not_given_is_left_to_the_runtime() {
        let tokens = |options: &Options, key| {
            let key = Key::new(key).unwrap_or_else(|error| panic!("{error}"));
            let (_, options) = options.tokens(&Crate(None), &key, &["day".to_owned()]);
            options.to_string().replace(' ', "")
        };
        let private = "::dlock::__private";
        assert_eq!(
            tokens(&Options::default(), parse_quote!("a")),
            format!("const{{&{private}::Options{{template:\"a\",..{private}::Options::new()}}}}")
        );
        let options = Options {
            fenced: true,
            ..Options::default()
        };
        assert_eq!(
            tokens(&options, parse_quote!("a:<id>")),
            format!(
                "const{{&{private}::Options{{template:\"a:<id>\",\
                 shapes:{private}::Shapes::Known(&[\
                 {private}::Part{{template:\"a:<id>\",shape:\"a:<>\",arguments:&[],}}]),fenced:true,\
                 ..{private}::Options::new()}}}}"
            )
        );
        let constant = tokens(&options, parse_quote!(KEY));
        let arguments = "template:\"KEY\",shape:\"\",arguments:&[\"day\"],";
        assert!(constant.contains(arguments), "{constant}");
    }
}
