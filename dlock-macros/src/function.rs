//! The item under the attribute: an `async fn`, or the form that `#[async_trait]` makes of one.

mod boxed;

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::quote;
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::{Abi, Attribute, FnArg, ReturnType, Signature, Token, Type, TypeParamBound, Visibility};

pub(crate) use self::boxed::Boxed;
use crate::bindings;

/// A function whose body can run under a lock.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    /// The attributes inside the body's braces.
    pub(crate) inner_attributes: Vec<Attribute>,
    /// Where the body's braces are.
    pub(crate) braces: Span,
    pub(crate) form: Form,
}

/// How the function is asynchronous.
pub(crate) enum Form {
    /// By itself. The block is its body, unparsed.
    Async(Group),
    /// By the boxed future that it returns.
    Boxed(Box<Boxed>),
}

impl Function {
    pub(crate) fn parse(item: TokenStream) -> syn::Result<Self> {
        Self::read.parse2(item)
    }

    /// The names that the arguments bind, including `self`.
    pub(crate) fn argument_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for argument in &self.signature.inputs {
            match argument {
                FnArg::Receiver(_) => names.push("self".to_owned()),
                FnArg::Typed(argument) => {
                    let mut pattern = (*argument.pat).clone();
                    bindings::visit(&mut pattern, |binding| {
                        names.push(binding.ident.unraw().to_string());
                    });
                }
            }
        }
        names
    }

    fn read(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        if !begins_function(input) {
            return Err(not_a_function(input));
        }
        let signature: Signature = input.parse()?;
        if input.peek(Token![;]) || input.is_empty() {
            return Err(syn::Error::new(
                signature.ident.span(),
                "this method has no body to lock; put `#[distributed_lock]` on the methods that \
                 implement it",
            ));
        }
        let (inner_attributes, block) = split_inner_attributes(body(input)?)?;
        let braces = block.span();
        let form = if signature.asyncness.is_some() {
            Form::Async(block)
        } else if let Some(output) = boxed::output(&signature.output) {
            Form::Boxed(Box::new(Boxed::parse(output, &block)?))
        } else {
            return Err(not_async(&signature, &attributes));
        };
        Ok(Self {
            attributes,
            visibility,
            signature,
            inner_attributes,
            braces,
            form,
        })
    }
}

/// Whether a function's `fn` is next, after its optional qualifiers.
fn begins_function(input: ParseStream<'_>) -> bool {
    let qualifiers = |input: ParseStream<'_>| {
        input.parse::<Option<Token![const]>>()?;
        input.parse::<Option<Token![async]>>()?;
        input.parse::<Option<Token![unsafe]>>()?;
        input.parse::<Option<Abi>>()?;
        input.parse::<Token![fn]>()
    };
    qualifiers(&input.fork()).is_ok()
}

fn not_a_function(input: ParseStream<'_>) -> syn::Error {
    let is_impl = input.peek(Token![impl])
        || input.peek(Token![unsafe]) && input.peek2(Token![impl])
        || input.peek(Token![trait]);
    input.error(if is_impl {
        "`#[distributed_lock]` goes on one `async fn`: put it on each method that needs the lock, \
         as each needs a key of its own"
    } else {
        "`#[distributed_lock]` goes on an `async fn`"
    })
}

fn not_async(signature: &Signature, attributes: &[Attribute]) -> syn::Error {
    let name = &signature.ident;
    let is_test = attributes.iter().any(|attribute| {
        attribute
            .path()
            .segments
            .last()
            .is_some_and(|segment| segment.ident == "test")
    });
    let message = if is_test {
        format!(
            "`{name}` is not async any more: an attribute above, such as `#[tokio::test]`, has \
             taken the `async` away; put `#[distributed_lock]` above that one"
        )
    } else if name == "drop" {
        // A `drop` may run on a thread of the runtime, where `Handle::block_on` panics.
        "`drop` cannot be async: let it send what is to be done over a channel, and let a task do \
         that under the lock"
            .to_owned()
    } else if returns_impl_future(signature) {
        format!(
            "`{name}` is not async: make it an `async fn`, which may also implement a trait's \
             method that returns an `impl Future`"
        )
    } else {
        format!(
            "`{name}` is not async: make it an `async fn`; if it is one, an attribute above, such \
             as `#[tokio::main]`, has taken the `async` away: put `#[distributed_lock]` above that \
             one; code that must not be async calls an `async fn` by `Handle::block_on`, in \
             `tokio::task::spawn_blocking`"
        )
    };
    let fn_token = &signature.fn_token;
    syn::Error::new_spanned(quote!(#fn_token #name), message)
}

fn returns_impl_future(signature: &Signature) -> bool {
    let ReturnType::Type(_, returned) = &signature.output else {
        return false;
    };
    let Type::ImplTrait(opaque) = &**returned else {
        return false;
    };
    opaque.bounds.iter().any(|bound| match bound {
        TypeParamBound::Trait(bound) => bound
            .path
            .segments
            .last()
            .is_some_and(|segment| segment.ident == "Future"),
        _ => false,
    })
}

/// The body's block, without the invisible brackets that `macro_rules!` may have put around it.
fn body(input: ParseStream<'_>) -> syn::Result<Group> {
    input.step(|cursor| {
        let (block, rest) = cursor
            .token_tree()
            .ok_or_else(|| cursor.error("expected a body"))?;
        match unwrapped(block) {
            Some(block) => Ok((block, rest)),
            None => Err(cursor.error("expected a body in braces")),
        }
    })
}

fn unwrapped(tree: TokenTree) -> Option<Group> {
    let TokenTree::Group(group) = tree else {
        return None;
    };
    match group.delimiter() {
        Delimiter::Brace => Some(group),
        Delimiter::None => unwrapped(group.stream().into_iter().next()?),
        _ => None,
    }
}

/// Separates the attributes at the start of a block from the rest, which stays unparsed: errors in
/// it are reported by the compiler.
fn split_inner_attributes(block: Group) -> syn::Result<(Vec<Attribute>, Group)> {
    let split = |input: ParseStream<'_>| {
        Ok((
            input.call(Attribute::parse_inner)?,
            input.parse::<TokenStream>()?,
        ))
    };
    let (attributes, rest) = split.parse2(block.stream())?;
    if attributes.is_empty() {
        return Ok((attributes, block));
    }
    Ok((attributes, in_braces(block.span(), rest)))
}

/// The compiler takes code for the user's by the place of its braces: warnings about the function,
/// and its lines in a report of test coverage, are lost otherwise
/// (<https://github.com/tokio-rs/tracing/issues/1366>).
pub(crate) fn in_braces(place: Span, code: TokenStream) -> Group {
    let mut group = Group::new(Delimiter::Brace, code);
    group.set_span(place);
    group
}
