//! What the code that `#[distributed_lock]` generates calls, and nobody else.
//! No part of the public surface: it changes with the attribute.

use std::sync::Arc;

use crate::error::LockError;
use crate::key::LockKey;

/// A return type that can hold a [`LockError`].
#[diagnostic::on_unimplemented(
    message = "a function under `#[distributed_lock]` returns a `Result`, and `{Self}` is none",
    label = "cannot say that the lock was not had",
    note = "return `Result<_, E>` with `E: From<dlock::LockError>`, or give the attribute \
            `on_error = |error| …` to make the return value"
)]
pub trait Fallible: Sized {
    /// The return value of a call that did not have the lock, or lost it.
    fn refused(error: LockError) -> Self;
}

impl<T, E: FromLockError> Fallible for Result<T, E> {
    fn refused(error: LockError) -> Self {
        Err(E::from_lock_error(error))
    }
}

/// `From<LockError>`, with an error of its own when it is missing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made from a `dlock::LockError`",
    label = "this error type does not implement `From<dlock::LockError>`",
    note = "write `impl From<dlock::LockError> for {Self}`, or give the attribute \
            `on_error = |error| …` to make the return value"
)]
pub trait FromLockError {
    /// The conversion.
    fn from_lock_error(error: LockError) -> Self;
}

// Or the compiler names `From<LockError>` alone and not what to do about it.
#[diagnostic::do_not_recommend]
impl<E: From<LockError>> FromLockError for E {
    fn from_lock_error(error: LockError) -> Self {
        error.into()
    }
}

/// What makes the return value where the attribute has no `on_error`.
#[must_use]
pub fn refusal<R: Fallible>() -> fn(LockError) -> R {
    R::refused
}

/// The outcome of a section, with an error made into a return value.
pub fn or_else<R>(outcome: Result<R, LockError>, on_error: impl FnOnce(LockError) -> R) -> R {
    outcome.unwrap_or_else(on_error)
}

/// Stands for a value of the declared return type in a `return` that is never
/// taken.
#[must_use]
pub fn declared<R>() -> R {
    unreachable!("the return that is never taken")
}

/// Makes the key of an expression, so that an expression that makes none is
/// shown as the mistake.
pub fn lock_key(key: impl Into<LockKey>) -> LockKey {
    key.into()
}

/// Makes one name of several.
pub fn lock_name(name: impl Into<Arc<str>>) -> Arc<str> {
    name.into()
}
