//! Generates the code.
//!
//! ```text
//! async fn deduct(sku: &str) -> Result<u32, ShopError> { <body> }
//! ```
//!
//! becomes
//!
//! ```text
//! async fn deduct(sku: &str) -> Result<u32, ShopError> {
//!     let key = lock_key(KeyTemplate::new("stock:").value(&sku, "", true).finish());
//!     let body = async move {
//!         let sku = sku;
//!         if false { return declared::<Result<u32, ShopError>>(); }
//!         match () { () => { <body> } }
//!     };
//!     let outcome = run(key, const { &Options { .. } }, body).await;
//!     match outcome {
//!         Ok(output) => output,
//!         Err(error) => refusal::<Result<u32, ShopError>>()(error),
//!     }
//! }
//! ```
//!
//! The names `key`, `body`, `outcome`, `output` and `error` have `__dlock_` before them: the user may
//! have a unit struct or a constant of that name, and a pattern would stand for that.
//!
//! With `once`, `run_once` also gets a function that tells whether the body is done.
//!
//! The `return` that is never taken tells the compiler the type of the block before it reads the
//! user's code, so that `?` and `into()` know their target and a mismatch is reported at its place.
//! The `match` drops what the body's last expression borrows before the arguments are dropped, as
//! in any function, in every edition. A plain block in its place would get a lint about unnecessary
//! braces.

use proc_macro2::{Group, Ident, Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::Attribute;

use crate::args::Args;
use crate::bindings::{self, Uses};
use crate::function::{Boxed, Form, Function, in_braces};
use crate::mentions::Mentions;
use crate::returns::{self, Returned};

/// The item under its lock. On a mistake of the user, the error and the unchanged item, so that
/// nothing else fails because it is missing. Warnings about the item are silenced, since some of
/// its parts may only be used by the lock.
pub(crate) fn expand(args: TokenStream, item: &TokenStream) -> TokenStream {
    try_expand(args, item.clone()).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        quote!(#error #[allow(unused)] #item)
    })
}

fn try_expand(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let args = Args::parse(args)?;
    let function = Function::parse(item)?;
    args.key.check(&function.argument_names())?;
    if args.on_error.is_none() && matches!(function.form, Form::Async(_)) {
        returns::refuse_unfit(&function.signature)?;
    }
    Ok(locked(&args, function))
}

fn locked(args: &Args, function: Function) -> TokenStream {
    let arguments = function.argument_names();
    let Function {
        attributes,
        visibility,
        mut signature,
        inner_attributes,
        braces,
        form,
    } = function;
    let body = match form {
        Form::Async(block) => {
            let returned = Returned::of(&signature);
            let uses = uses(args, &block);
            let moves = bindings::move_in(&mut signature, &uses, attributes.iter().all(is_inert));
            let opening = quote_spanned!(Span::mixed_site()=> async move);
            section(args, &arguments, &returned, &opening, &moves, &block)
        }
        Form::Boxed(boxed) => {
            let Boxed {
                pin,
                opening,
                block,
                output,
            } = *boxed;
            // The macro that made this form has moved the arguments already.
            let moves = TokenStream::new();
            let block = bindings::already_moved(block, &mentioned(args));
            let returned = Returned::new(output);
            let section = section(args, &arguments, &returned, &opening, &moves, &block);
            quote_spanned!(Span::mixed_site()=> #pin(#opening { #section }))
        }
    };
    let body = in_braces(braces, quote!(#(#inner_attributes)* #body));
    quote!(#(#attributes)* #visibility #signature #body)
}

/// The statements that take the lock, run the block and give the lock back.
fn section(
    args: &Args,
    arguments: &[String],
    returned: &Returned,
    opening: &TokenStream,
    moves: &TokenStream,
    block: &Group,
) -> TokenStream {
    let Args {
        key,
        options,
        on_error,
        krate,
    } = args;
    let span = Span::mixed_site();
    let private = krate.private(span);
    let (permits, options) = options.tokens(krate, key, arguments);
    let key = key.tokens(krate);
    let never_taken = returned.never_taken(krate);
    let error = Ident::new("__dlock_error", span);
    let refused = returned.refuse(krate, &error, on_error.as_ref());
    let run = match args.options.once {
        None => quote_spanned!(span=> #private::run(__dlock_key, #options, __dlock_body)),
        Some(_) => quote_spanned! {span=>
            #private::run_once(__dlock_key, #options, __dlock_body, |__dlock_output| {
                #private::Returned(__dlock_output).is_done()
            })
        },
    };
    let inside = quote_spanned! {span=>
        #moves
        #never_taken
        match () {
            () => #block
        }
    };
    let inside = in_braces(block.span(), inside);
    // A return value that borrows too little is reported where the user wrote its type.
    let output = Ident::new("__dlock_output", returned.place());
    quote_spanned! {span=>
        #permits
        let __dlock_key = #key;
        // What it returns may be a future, as of any function.
        #[allow(clippy::async_yields_async)]
        let __dlock_body = #opening #inside;
        #[allow(clippy::needless_update)]
        let __dlock_outcome = #run.await;
        match __dlock_outcome {
            ::core::result::Result::Ok(__dlock_output) => #output,
            ::core::result::Result::Err(#error) => #refused,
        }
    }
}

fn uses(args: &Args, block: &Group) -> Uses {
    let mut before = args.key.consumable();
    before.add(args.options.consumable().to_token_stream());
    Uses {
        elsewhere: mentioned(args),
        before,
        by_body: Mentions::of(block.stream()),
    }
}

/// What is used outside the body.
fn mentioned(args: &Args) -> Mentions {
    let mut mentions = args.key.mentions();
    mentions.add(args.options.permits.to_token_stream());
    if let Some(on_error) = &args.on_error {
        mentions.add(on_error.to_token_stream());
    }
    mentions
}

/// Whether the attribute leaves the function as it is. Another macro might use the name of an
/// argument, so below such a macro no name is given to an argument without one.
fn is_inert(attribute: &Attribute) -> bool {
    const INERT: [&str; 12] = [
        "doc",
        "allow",
        "expect",
        "warn",
        "deny",
        "forbid",
        "cfg",
        "cfg_attr",
        "must_use",
        "deprecated",
        "inline",
        "cold",
    ];
    INERT.iter().any(|name| attribute.path().is_ident(name))
}
