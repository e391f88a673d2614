//! Called only by the code that `#[distributed_lock]` generates. Not part of the public interface:
//! it changes with the attribute.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use crate::api::Run;
use crate::backend::Mode;
use crate::error::LockError;
use crate::key::LockKey;
use crate::options::Options;

/// A return type that can hold a [`LockError`].
#[diagnostic::on_unimplemented(
    message = "a function under `#[distributed_lock]` returns a `Result`, and `{Self}` is none",
    label = "cannot say that the lock was not had",
    note = "return `Result<_, E>` with `E: From<dlock::LockError>`, or give the attribute \
            `on_error = |error| …` to make the return value"
)]
pub trait Fallible {
    /// The error type.
    type Error;

    /// The return value of a call that did not get the lock, or lost it.
    fn refused(error: Self::Error) -> Self;
}

impl<T, E> Fallible for Result<T, E> {
    type Error = E;

    fn refused(error: E) -> Self {
        Err(error)
    }
}

/// `From<LockError>`, with its own compile error where that is missing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made from a `dlock::LockError`",
    label = "this error type does not implement `From<dlock::LockError>`",
    note = "if the type is yours, write `impl From<dlock::LockError> for {Self}`; if it is not, or \
            should not have that, give the attribute `on_error = |error| Err(…)` to make one"
)]
pub trait FromLockError {
    /// The conversion.
    fn from_lock_error(error: LockError) -> Self;
}

// Otherwise the compiler only names `From<LockError>`, without saying what to do.
#[diagnostic::do_not_recommend]
impl<E: From<LockError>> FromLockError for E {
    fn from_lock_error(error: LockError) -> Self {
        error.into()
    }
}

/// The function that makes the return value if the attribute has no `on_error`.
#[must_use]
pub fn refusal<R: Fallible<Error: FromLockError>>() -> fn(LockError) -> R {
    |error| R::refused(R::Error::from_lock_error(error))
}

/// Calls `on_error`. A closure that is passed here need not name the type of its argument.
pub fn refuse<R>(error: LockError, on_error: impl FnOnce(LockError) -> R) -> R {
    on_error(error)
}

/// A value of the declared return type, for a `return` that is never taken.
#[must_use]
pub fn declared<R>() -> R {
    unreachable!("the return that is never taken")
}

/// `Into<LockKey>`, with its own compile error where that is missing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the key of a lock",
    label = "makes no key",
    note = "a key is a template such as `\"stock:<sku>\"`, a string, a list of strings, or any \
            `impl Into<dlock::LockKey>`"
)]
pub trait IntoLockKey {
    /// The conversion.
    fn into_lock_key(self) -> LockKey;
}

#[diagnostic::do_not_recommend]
impl<K: Into<LockKey>> IntoLockKey for K {
    fn into_lock_key(self) -> LockKey {
        self.into()
    }
}

/// Makes the key from the attribute's argument.
pub fn lock_key(key: impl IntoLockKey) -> LockKey {
    key.into_lock_key()
}

/// One of the names in a key of several.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be one of the keys of a lock",
    label = "makes no key",
    note = "each of several keys is a template such as `\"stock:<sku>\"`, or a string"
)]
pub trait IntoLockName {
    /// The conversion.
    fn into_lock_name(self) -> Arc<str>;
}

#[diagnostic::do_not_recommend]
impl<N: Into<Arc<str>>> IntoLockName for N {
    fn into_lock_name(self) -> Arc<str> {
        self.into()
    }
}

/// Makes one name from an element of the attribute's argument.
pub fn lock_name(name: impl IntoLockName) -> Arc<str> {
    name.into_lock_name()
}

/// A number of permits.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no number of permits",
    label = "not a whole number",
    note = "give `permits` a `u32`, or another whole number"
)]
pub trait IntoPermits {
    /// The conversion; 0 is refused when the lock is requested.
    fn into_permits(self) -> u32;
}

#[diagnostic::do_not_recommend]
impl<N: TryInto<u32>> IntoPermits for N {
    fn into_permits(self) -> u32 {
        self.try_into().unwrap_or(0)
    }
}

/// The options with a number of permits that is known only at run time.
#[must_use]
pub fn with_permits(options: &Options, permits: impl IntoPermits) -> Options {
    let mode = Mode::Permits(permits.into_permits());
    Options { mode, ..*options }
}

/// The output of an annotated body. `Returned(&output).is_done()` says whether its work is done:
/// the compiler finds the method for a `Result` first, and otherwise that of [`NoResult`].
#[derive(Debug)]
pub struct Returned<'a, T>(pub &'a T);

impl<T, E> Returned<'_, Result<T, E>> {
    /// Whether it is `Ok`.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_ok()
    }
}

impl<T> Deref for Returned<'_, T> {
    type Target = NoResult;

    fn deref(&self) -> &NoResult {
        &NoResult
    }
}

/// Any other output of a body.
#[derive(Debug)]
pub struct NoResult;

impl NoResult {
    /// A body without a `Result` is done when it returns.
    #[must_use]
    pub fn is_done(&self) -> bool {
        true
    }
}

/// Runs an annotated function's body under its lock, and remembers the body if it has done its
/// work.
pub fn run_once<F: Future>(
    key: impl Into<LockKey>,
    options: &Options,
    body: F,
    is_done: fn(&F::Output) -> bool,
) -> Run<F> {
    run(key, options, body).done_if(is_done)
}

/// Runs an annotated function's body under its lock.
pub fn run<F: Future>(key: impl Into<LockKey>, options: &Options, body: F) -> Run<F> {
    Run::new(None, key.into(), *options, body)
}
