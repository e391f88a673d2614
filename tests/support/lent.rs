//! Servers that a test has to itself, and that others have used before it: to start several takes
//! longer than most tests do.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use super::proxy::Proxy;

/// What can be lent to one test after the other.
pub(crate) trait Lendable: Sized + 'static {
    fn pool() -> &'static Mutex<Pool<Self>>;

    /// One in which no server takes the place of another.
    async fn calm() -> Self;

    /// Forgets all that is kept.
    async fn clear(&self);

    /// How it is reached.
    fn proxies(&self) -> &[Proxy];
}

/// Those that no test has now.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    lent: usize,
    free: Vec<T>,
}

impl<T> Pool<T> {
    pub(crate) const fn none() -> Self {
        Self {
            lent: 0,
            free: Vec::new(),
        }
    }
}

/// One that was used by a test before, or will be by another. Nobody else uses it meanwhile. What
/// a failed test had is not lent again.
#[derive(Debug)]
pub(crate) struct Lent<T: Lendable>(Option<T>);

impl<T: Lendable> Lent<T> {
    pub(crate) async fn empty() -> Self {
        let free = {
            let mut pool = T::pool().lock().unwrap_or_else(PoisonError::into_inner);
            pool.lent += 1;
            pool.free.pop()
        };
        // From here on it counts as lent, whatever happens.
        let mut lent = Self(free);
        match &lent.0 {
            None => lent.0 = Some(T::calm().await),
            Some(used) => used.clear().await,
        }
        lent
    }
}

impl<T: Lendable> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("lent until it is dropped")
    }
}

impl<T: Lendable> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("lent until it is dropped")
    }
}

impl<T: Lendable> Drop for Lent<T> {
    /// The last who gives one back ends them all, as nothing is dropped at the
    /// end of a program.
    fn drop(&mut self) {
        // Servers are ended after the mutex is released.
        let (used, _failed) = match std::thread::panicking() {
            false => (self.0.take(), None),
            true => (None, self.0.take()),
        };
        let mut pool = T::pool().lock().unwrap_or_else(PoisonError::into_inner);
        pool.lent -= 1;
        if let Some(used) = used {
            for proxy in used.proxies() {
                proxy.refuse(false);
                // A client that still listens would count as a waiter.
                proxy.cut();
            }
            pool.free.push(used);
        }
        let ended = match pool.lent {
            0 => std::mem::take(&mut pool.free),
            _ => Vec::new(),
        };
        drop(pool);
        drop(ended);
    }
}
