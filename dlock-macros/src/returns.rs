//! The declared return type, as the body may name it.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote_spanned};
use syn::spanned::Spanned as _;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, ReturnType, Signature, Token, Type, TypeInfer};

use crate::krate::{Crate, ours};

/// The type that a function returns or a future resolves to.
pub(crate) struct Returned {
    /// The type as an expression may name it, with `_` for parts that it may not name.
    tokens: TokenStream,
    /// Where the user wrote it.
    span: Span,
}

impl Returned {
    pub(crate) fn of(signature: &Signature) -> Self {
        match &signature.output {
            ReturnType::Default => {
                let span = signature.ident.span();
                Self {
                    tokens: quote_spanned!(ours(span)=> ()),
                    span,
                }
            }
            ReturnType::Type(_, ty) => Self::new((**ty).clone()),
        }
    }

    pub(crate) fn new(mut ty: Type) -> Self {
        let span = ty.span();
        Infer.visit_type_mut(&mut ty);
        Self {
            tokens: ty.into_token_stream(),
            span,
        }
    }

    /// Where it is written, for what the lock does with it.
    pub(crate) fn place(&self) -> Span {
        ours(self.span)
    }

    /// A `return` that is never taken. It tells the compiler the type of the surrounding block
    /// before it reads the user's code.
    pub(crate) fn never_taken(&self, krate: &Crate) -> TokenStream {
        let span = self.place();
        let private = krate.private(span);
        let ty = &self.tokens;
        quote_spanned! {span=>
            if false {
                #[allow(clippy::diverging_sub_expression)]
                return #private::declared::<#ty>();
            }
        }
    }

    /// The return value made from `error`: by `on_error`, or else by the type, if it can hold one.
    pub(crate) fn refuse(
        &self,
        krate: &Crate,
        error: &Ident,
        on_error: Option<&Expr>,
    ) -> TokenStream {
        let span = self.place();
        let private = krate.private(span);
        let ty = &self.tokens;
        if let Some(on_error) = on_error {
            quote_spanned!(span=> #private::refuse::<#ty>(#error, #on_error))
        } else {
            quote_spanned!(span=> #private::refusal::<#ty>()(#error))
        }
    }
}

/// Replaces types that cannot be named with `_`.
struct Infer;

impl VisitMut for Infer {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        let span = match ty {
            Type::ImplTrait(opaque) => opaque.impl_token.span,
            Type::Never(never) => never.bang_token.span,
            _ => return visit_mut::visit_type_mut(self, ty),
        };
        let underscore_token = Token![_](span);
        *ty = Type::Infer(TypeInfer {
            attrs: Vec::new(),
            underscore_token,
        });
    }
}

/// Refuses a return type that is obviously not a `Result`. The compiler judges all others, since
/// only it sees through an alias.
pub(crate) fn refuse_unfit(signature: &Signature) -> syn::Result<()> {
    let name = &signature.ident;
    let span = match &signature.output {
        ReturnType::Default => name.span(),
        ReturnType::Type(_, ty) if matches!(**ty, Type::Never(_)) => ty.span(),
        ReturnType::Type(..) => return Ok(()),
    };
    Err(syn::Error::new(
        span,
        format!(
            "`{name}` has no way to say that the lock was not had: return a `Result<_, E>` with \
             `E: From<dlock::LockError>`, or give `on_error = |error| …`"
        ),
    ))
}
