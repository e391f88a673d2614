//! The attribute of `dlock`. Use it through that crate, which re-exports it and contains what the
//! generated code calls.
//!
//! `args` reads what the user wrote in the parentheses, `function` reads the item under the
//! attribute, and `expand` writes one call into the runtime around the body. The body itself is
//! never parsed.

mod args;
mod bindings;
mod duration;
mod expand;
mod function;
mod key;
mod krate;
mod lookalikes;
mod mentions;
mod options;
mod returns;
mod source;
mod template;

use proc_macro::TokenStream;

/// Makes an async function a distributed critical section.
///
/// The function's future first takes the lock that `key` names, then runs the body, then gives the
/// lock back, whatever ended the body: a value, `?`, a panic, or the future being dropped. While
/// the body runs, the lease is renewed.
///
/// With `#[distributed_lock(key = "stock:<sku>", ttl = "30s", timeout = "2s")]` above `async fn
/// deduct(sku: &str, quantity: u32) -> Result<u32, ShopError>`, no two calls for one `sku` overlap,
/// in this process or any other that uses the same store.
///
/// # Arguments
///
/// | argument | meaning | default |
/// |---|---|---|
/// | `key = "a:<expr>:b"` | a template: each `<…>` holds a Rust expression over the arguments (`<sku>`, `<self.shop>`, `<order.lines[0].id>`, `<id.as_str()>`), shown with `Display`; `<<` is a literal `<`; braces are plain text | required |
/// | `key = expr` | any expression that makes a key (`impl Into<LockKey>`) | |
/// | `key = ["a:<from>", "a:<to>"]` | several keys as one: sorted, duplicates folded, all or nothing | |
/// | `ttl = "30s"` | the lease (`ms`, `s`, `m`, `h`, and sums such as `1m30s`; at least `10ms`) | the configuration's |
/// | `wait`, `try` or `timeout = "5s"` | wait for the lock; give up at once; give up after that time | the configuration's, else `wait` |
/// | `mode = "read"` or `"write"` | shared or exclusive | `"write"` |
/// | `permits = 10` or an expression over the arguments | at most this many bodies of the key at once, over all processes; a whole number from 1 on; not with `mode`, and above 1 not with `fenced` | exclusive |
/// | `renew = false` | a fixed lease: the body must end within `ttl` | renewed |
/// | `max_hold = "10m"` | renewal stops here: a hung body cannot hold a lock for ever; not with `renew = false` | none |
/// | `min_hold = "5s"` | released no sooner than this after the grant; no longer than `max_hold` | none |
/// | `once = "48h"` | a body that returned `Ok`, or no `Result` at all, is remembered under its key for this long: calls meanwhile get `LockError::Done`; after an `Err`, a panic or a death the next one runs it; for one key, not with `mode = "read"` or `permits` | off |
/// | `on_error = expr` | `\|error: LockError\| …` makes the return value when the lock was not granted or was lost | return `Err(error.into())` |
/// | `on_lost = "cancel"` or `"continue"` | a lost lease drops the body at its next await, or only shows in `dlock::current()` | `"cancel"` |
/// | `fenced` | an error unless the store's fencing tokens are strict | off |
/// | `crate = path` | where `dlock` is, when renamed | `::dlock` |
///
/// # The key
///
/// Values in a template are escaped, so that different arguments never make the same key. A
/// template is one string literal; anything else is an expression, and a string inside it is only
/// text. In a template, the first `>` outside brackets, quotes and `::<…>` ends an expression; a
/// comparison or a shift needs parentheses, as in `<(id >> 4)>`. The key is made when the future is
/// first polled, before the arguments are moved into the body: the body may consume what the key
/// mentions. What a key *expression* consumes is not available to the body.
///
/// Braces are text, as in `"cart:{<user>}"` and `"{carts}:<user>"`, since Redis Cluster reads them.
/// In a function with arguments, an error tells of text that would make one key for all of them:
/// `{}`, `{0}`, an argument's name in braces, behind `#` or `$`, or before a `>` that closes
/// nothing, and any name in braces if the template has no `<…>`. Write such a text as an
/// expression: `key = String::from("{carts}")`.
///
/// # The return type
///
/// Without `on_error` the function returns a `Result<T, E>`, or an alias of one, with `E:
/// From<LockError>`. With `on_error` it may return any type.
///
/// For the future to be `Send`, so must its output be: `Box<dyn Error + Send + Sync>`, not
/// `Box<dyn Error>`.
///
/// `on_error` is called after the arguments have moved into the body, so it can mention only those
/// that are `Copy`, such as references.
///
/// # The body
///
/// It behaves as it would without the attribute. All arguments are dropped at its end, before the
/// lock is given back, even those that it does not mention. Four things outlive the lock: the part
/// of an argument that its pattern leaves unnamed, as in `(name, _): (String, Guard)`; an argument
/// `_: Guard`, if an attribute below this one might look at it, such as `#[instrument]`; the owner
/// behind a `ref`, as in `ref name: String`; and an argument that a key expression mentions and the
/// body does not.
///
/// # With other attributes
///
/// Rust expands attributes from the top. `#[tokio::test]` and `#[tokio::main]` remove the `async`,
/// so they belong *below* this one. `#[instrument]` works on either side: below, its span covers
/// the body and the wait for the lock; above, the body only. Methods under `#[async_trait]` are
/// supported in the form that it produces; there, a destructured argument cannot be named in a key.
///
/// An axum handler names its extractors in the key, as in `Path(id): Path<u64>` and `key =
/// "order:<id>"`; `#[debug_handler]` works on either side. With feature `axum`, `LockError` is a
/// response.
///
/// Of two locks on one function, the lower is taken first. To take several keys, `key = [a, b]` is
/// better: it cannot deadlock.
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(args.into(), &item.into()).into()
}
