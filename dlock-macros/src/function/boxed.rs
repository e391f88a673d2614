//! A function that returns a boxed future, as `#[async_trait]` produces it.

use proc_macro2::{Delimiter, Group, TokenStream};
use quote::quote;
use syn::parse::{ParseStream, Parser as _};
use syn::{
    Attribute, GenericArgument, Path, PathArguments, PathSegment, ReturnType, Token, Type,
    TypeParamBound,
};

/// ```text
/// fn f(…) -> Pin<Box<dyn Future<Output = R> + …>> { Box::pin(async move { … }) }
/// ```
pub(crate) struct Boxed {
    /// The path of `Box::pin`.
    pub(crate) pin: Path,
    /// `async move`, with its attributes.
    pub(crate) opening: TokenStream,
    /// The block after it, unparsed.
    pub(crate) block: Group,
    /// `R`.
    pub(crate) output: Type,
}

impl Boxed {
    /// Takes the body apart. The future must be the whole body: code that runs before the future is
    /// made would run without the lock.
    pub(super) fn parse(output: Type, body: &Group) -> syn::Result<Self> {
        let read = |input: ParseStream<'_>| {
            let pin = input.call(Path::parse_mod_style)?;
            let inside = input.parse::<Group>()?;
            if !input.is_empty() || inside.delimiter() != Delimiter::Parenthesis {
                return Err(input.error("expected `Box::pin(…)`"));
            }
            Ok((pin, inside.stream()))
        };
        let read_inside = |input: ParseStream<'_>| {
            let attributes = input.call(Attribute::parse_outer)?;
            let asyncness = input.parse::<Token![async]>()?;
            let movement = input.parse::<Option<Token![move]>>()?;
            let block = input.parse::<Group>()?;
            input.parse::<Option<Token![,]>>()?;
            Ok((quote!(#(#attributes)* #asyncness #movement), block))
        };
        let parts = read.parse2(body.stream()).and_then(|(pin, inside)| {
            let (opening, block) = read_inside.parse2(inside)?;
            Ok((pin, opening, block))
        });
        match parts {
            Ok((pin, opening, block)) => Ok(Self {
                pin,
                opening,
                block,
                output,
            }),
            Err(_) => Err(syn::Error::new(
                body.span(),
                "the body of a function that returns a boxed future must be one \
                 `Box::pin(async move { … })`, so that all of it runs under the lock; or make it \
                 an `async fn`",
            )),
        }
    }
}

/// The `R` of a `Pin<Box<dyn Future<Output = R> + …>>`.
pub(super) fn output(returned: &ReturnType) -> Option<Type> {
    let ReturnType::Type(_, returned) = returned else {
        return None;
    };
    let boxed = only_argument(returned, "Pin")?;
    let Type::TraitObject(object) = ungrouped(only_argument(boxed, "Box")?) else {
        return None;
    };
    object.bounds.iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => {
            arguments(bound.path.segments.last()?, "Future")?.find_map(|argument| match argument {
                GenericArgument::AssocType(assoc) if assoc.ident == "Output" => {
                    Some(assoc.ty.clone())
                }
                _ => None,
            })
        }
        _ => None,
    })
}

/// The `T` of a `Name<T>`.
fn only_argument<'a>(ty: &'a Type, name: &str) -> Option<&'a Type> {
    let Type::Path(path) = ungrouped(ty) else {
        return None;
    };
    match arguments(path.path.segments.last()?, name)?.next()? {
        GenericArgument::Type(argument) => Some(argument),
        _ => None,
    }
}

fn arguments<'a>(
    segment: &'a PathSegment,
    name: &str,
) -> Option<impl Iterator<Item = &'a GenericArgument>> {
    match &segment.arguments {
        PathArguments::AngleBracketed(arguments) if segment.ident == name => {
            Some(arguments.args.iter())
        }
        _ => None,
    }
}

fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungrouped(&group.elem),
        Type::Paren(paren) => ungrouped(&paren.elem),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn only_a_pinned_box_of_a_future_is_one() {
        let is_boxed = |returned: ReturnType| output(&returned).is_some();
        assert!(is_boxed(parse_quote!(-> Pin<Box<dyn Future<Output = u8>>>)));
        assert!(is_boxed(
            parse_quote!(-> ::std::pin::Pin<(std::boxed::Box<dyn Send + std::future::Future<Output = u8>>)>)
        ));
        for other in [
            parse_quote!(-> Option<Box<dyn Future<Output = u8>>>),
            parse_quote!(-> Pin<Arc<dyn Future<Output = u8>>>),
            parse_quote!(-> Pin<Box<dyn Step<Output = u8>>>),
            parse_quote!(-> Pin<Box<dyn Future>>),
        ] {
            let shown = quote!(#other).to_string();
            assert!(!is_boxed(other), "{shown}");
        }
    }

    #[test]
    fn the_future_is_the_one_argument_of_a_call() {
        let is_read = |body: Group| Boxed::parse(parse_quote!(u8), &body).is_ok();
        assert!(is_read(parse_quote!({ Box::pin(async move { 1 }) })));
        assert!(is_read(parse_quote!({ Box::pin(async { 1 },) })));
        for body in [
            parse_quote!({ Box::pin[async move { 1 }] }),
            parse_quote!({ Box::pin { async move { 1 } } }),
            parse_quote!({ Box::pin(async move { 1 }).into() }),
            parse_quote!({ Box::pin(async move { 1 }, 2) }),
        ] {
            let shown = quote!(#body).to_string();
            assert!(!is_read(body), "{shown}");
        }
    }
}
