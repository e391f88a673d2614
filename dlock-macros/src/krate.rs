//! Where the generated code finds the runtime.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::Path;

/// The `crate` argument, or its default.
pub(crate) struct Crate(pub(crate) Option<Path>);

impl Crate {
    /// The path of the module that generated code calls, as tokens at `span`.
    pub(crate) fn private(&self, span: Span) -> TokenStream {
        let path = self.0.as_ref().map(|path| quote!(#path));
        let path = path.unwrap_or_else(|| quote_spanned!(ours(span)=> ::dlock));
        quote_spanned!(ours(span)=> #path::__private)
    }
}

/// The position of `span`, for generated tokens: names that the user's code does not see, and that
/// lints ignore.
pub(crate) fn ours(span: Span) -> Span {
    Span::mixed_site().located_at(span)
}
