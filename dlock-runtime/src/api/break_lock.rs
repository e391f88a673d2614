//! Breaks locks, for operators.

use std::sync::Arc;

use super::manager::{LockManager, lock_named};
use crate::backend::{HolderInfo, LockInfo, Released, TokenTier, WaiterInfo};
use crate::error::LockError;
use crate::key::{LockKey, namespaced};
use crate::token::{FencingToken, TOKENS_PER_GRANT};

impl LockManager {
    /// Breaks a lock: its holder loses it, and the next waiter gets it at once. With a `token`, the
    /// lock is broken only if its holder has this token. If there are several holders (readers,
    /// permits), the one with the token loses its share. Returns the holder whose lease was ended;
    /// `None` if nobody holds the lock, or nobody with this token.
    ///
    /// This does not stop the holder's work. The holder learns of the loss at its next renewal,
    /// within a third of its ttl, or sooner if the store notifies it. What it does until then
    /// overlaps with the next holder's work, which is what its [token](crate::FencingToken) is for.
    /// So end the process, if you can, rather than break its lock. Nothing that the former holder
    /// sends later affects the lock of the next.
    ///
    /// A break ends the lease of a process, whichever of its tasks holds it by then: a lease that
    /// is handed on within a process stays the same lease, with the same owner, and each of the 64
    /// tokens that it reserves names it. So the next task of that process may lose the lock.
    ///
    /// Redis learns the token of a holder with the first renewal of its lease, a third of its ttl
    /// after the grant, and of a lease that is never renewed not at all. Before that,
    /// [`break_holder`](Self::break_holder) names the holder.
    ///
    /// A body that has returned `Ok` under `once` holds nothing: use [`forget`](Self::forget) for
    /// that.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let stuck = manager.lock("stock:42").acquire().await?;
    ///
    /// let wrong = dlock::FencingToken::from(1);
    /// assert!(manager.break_lock("stock:42", Some(wrong)).await?.is_none());
    /// assert!(stuck.is_held());
    ///
    /// let broken = manager.break_lock("stock:42", Some(stuck.token())).await?;
    /// assert!(broken.is_some_and(|holder| holder.process.is_some()));
    /// stuck.lost().await;
    /// assert!(manager.lock("stock:42").try_acquire().await.is_ok());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`inspect`](Self::inspect). [`LockError::Unsupported`] if there are several holders
    /// and no token, or several to which the token may belong (readers on a quorum); if no holder
    /// is known to have the token, and the store does not know the tokens of all of them
    /// ([`break_holder`](Self::break_holder) compares their owners instead); or if it cannot break
    /// a lock.
    pub async fn break_lock(
        &self,
        key: impl Into<LockKey>,
        token: Option<FencingToken>,
    ) -> Result<Option<HolderInfo>, LockError> {
        let has_tokens = self.capabilities().tokens != TokenTier::None;
        self.break_chosen(key.into(), |lock| match token {
            Some(token) if has_tokens => with_token(lock, token),
            Some(_) if lock.holders.is_empty() => Ok(None),
            Some(_) => Err(format!(
                "this store has no fencing tokens; {NAME_THE_OWNER}"
            )),
            None => the_only(lock),
        })
        .await
    }

    /// Breaks the lock of one holder, named by its [`owner`](HolderInfo::owner) as
    /// [`inspect`](Self::inspect) shows it, like [`break_lock`](Self::break_lock). No two grants
    /// have the same owner, on any store, so no later holder is affected. But the lease may have
    /// been handed to another task of the same process, as there.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// # let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let one = manager.lock("catalogue").read().acquire().await?;
    /// let lock = manager.inspect("catalogue").await?.expect("it is held");
    /// let other = manager.lock("catalogue").read().acquire().await?;
    /// manager.break_holder("catalogue", &lock.holders[0].owner).await?;
    /// one.lost().await;
    /// assert!(other.is_held());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`inspect`](Self::inspect), and [`LockError::Unsupported`] if the store cannot
    /// break a lock.
    pub async fn break_holder(
        &self,
        key: impl Into<LockKey>,
        owner: &str,
    ) -> Result<Option<HolderInfo>, LockError> {
        let is_this = |holder: &&HolderInfo| holder.owner == owner;
        self.break_chosen(key.into(), |lock| Ok(lock.holders.iter().find(is_this)))
            .await
    }

    /// Removes a waiter from the store's queue, named by its [`owner`](WaiterInfo::owner) as
    /// [`inspect`](Self::inspect) shows it. The waiter gets [`LockError::TakenOut`], and so do the
    /// other tasks of its process that wait in the same place. The other waiters keep their order.
    /// Returns the waiter; `None` if no such owner waits, for example because it has got the lock
    /// since. The mode of a waiter that is too far behind for [`inspect`](Self::inspect) to show is
    /// not known: the default mode is returned for it.
    ///
    /// The store keeps the removal for at least 8 seconds. A process that is paused or cut off for
    /// longer does not learn of it, and takes a new place at the end.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// # let store = dlock::backend::memory::Memory::new();
    /// # let config = || dlock::Config::with_backend(store.clone());
    /// # let manager = dlock::LockManager::connect(config()).await?;
    /// # let other = dlock::LockManager::connect(config()).await?;
    /// let guard = manager.lock("stock:42").acquire().await?;
    /// let waits = tokio::spawn(other.lock("stock:42").acquire());
    /// # tokio::task::yield_now().await;
    /// let lock = manager.inspect("stock:42").await?.expect("it is held");
    /// manager.break_waiter("stock:42", &lock.queue[0].owner).await?;
    /// let told = waits.await.expect("no panic");
    /// assert!(matches!(told, Err(dlock::LockError::TakenOut { .. })));
    /// # guard.release().await }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`inspect`](Self::inspect), and [`LockError::Unsupported`] if the store has no
    /// queue, or cannot remove a waiter from it.
    pub async fn break_waiter(
        &self,
        key: impl Into<LockKey>,
        owner: &str,
    ) -> Result<Option<WaiterInfo>, LockError> {
        let key = key.into();
        let name = self.single(&key, "break")?;
        let (backend, full) = (&self.inner().leases.backend, self.full(name));
        let broken = async {
            let lock = backend.inspect(&full).await?;
            let queue = lock.map(|lock| lock.queue).unwrap_or_default();
            let waiter = queue.into_iter().find(|waiter| waiter.owner == owner);
            // The waiter may be behind those that are shown. A store that shows no queue answers
            // here why it cannot remove anybody.
            let asked =
                waiter.unwrap_or_else(|| WaiterInfo::new(owner.to_owned(), Default::default()));
            let broken = backend.break_waiter(&full, &asked).await?;
            Ok((broken == Released::Released).then_some(asked))
        };
        self.told(|| lock_named(name), broken).await
    }

    /// Breaks the lock only if the chosen owner still holds it: the store compares the owners.
    async fn break_chosen(
        &self,
        key: LockKey,
        choose: impl FnOnce(&LockInfo) -> Result<Option<&HolderInfo>, String>,
    ) -> Result<Option<HolderInfo>, LockError> {
        let name = self.single(&key, "break")?;
        let (backend, full) = (&self.inner().leases.backend, self.full(name));
        let subject = || lock_named(name);
        let Some(lock) = self.told(subject, backend.inspect(&full)).await? else {
            return Ok(None);
        };
        let unsupported = |reason| LockError::Unsupported {
            subject: subject(),
            reason,
        };
        let Some(holder) = choose(&lock).map_err(unsupported)? else {
            return Ok(None);
        };
        let broken = self.told(subject, backend.break_lock(&full, holder));
        Ok((broken.await? == Released::Released).then(|| holder.clone()))
    }

    fn full(&self, name: &Arc<str>) -> Arc<str> {
        namespaced(&self.inner().settings.namespace, name)
    }
}

/// What to do without a token.
const NAME_THE_OWNER: &str =
    "compare the owner instead, with `break_holder`, or `dlock break --holder`";

fn the_only(lock: &LockInfo) -> Result<Option<&HolderInfo>, String> {
    match &lock.holders[..] {
        [] => Ok(None),
        [holder] => Ok(Some(holder)),
        several => Err(format!(
            "{} hold it together; say whose lease to end, by its token, or by its owner with \
             `break_holder`",
            several.len()
        )),
    }
}

fn with_token(lock: &LockInfo, token: FencingToken) -> Result<Option<&HolderInfo>, String> {
    let number = u64::from(token);
    let has_it = |holder: &&HolderInfo| {
        let behind = holder.token.map(u64::from);
        let behind = behind.and_then(|first| number.checked_sub(first));
        behind.is_some_and(|behind| behind < TOKENS_PER_GRANT)
    };
    let mut found = lock.holders.iter().filter(has_it);
    let (one, another) = (found.next(), found.next());
    if another.is_some() {
        // The tokens of readers may overlap on a quorum, as do those of a user's own backend that
        // reserves fewer for each grant.
        return Err(format!(
            "several of its holders may have this token; {NAME_THE_OWNER}"
        ));
    }
    if one.is_none() && lock.holders.iter().any(|holder| holder.token.is_none()) {
        return Err(format!(
            "the store does not know the token of who holds it, or not yet: some stores learn it \
             with the first renewal, a third of the ttl after the grant; {NAME_THE_OWNER}"
        ));
    }
    Ok(one)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::Mode;

    fn held_with(tokens: &[u64]) -> LockInfo {
        let holder = |token: &u64| {
            let mut holder = HolderInfo::new(token.to_string(), Some(Duration::from_secs(1)));
            holder.token = Some((*token).into());
            holder
        };
        let holders = tokens.iter().map(holder).collect();
        LockInfo::new("key".to_owned(), Mode::Read, holders, 0)
    }

    fn chosen(tokens: &[u64], token: u64) -> Option<u64> {
        let lock = held_with(tokens);
        let found = with_token(&lock, token.into()).expect("tokens are kept");
        found.and_then(|holder| holder.token).map(u64::from)
    }

    #[test]
    fn a_token_names_the_grant_that_reserved_it() {
        assert_eq!(chosen(&[64, 128], 64), Some(64));
        assert_eq!(chosen(&[64, 128], 127), Some(64));
        assert_eq!(chosen(&[64, 128], 128), Some(128));
        assert_eq!(chosen(&[64], 63), None);
        assert_eq!(chosen(&[64], 128), None);
    }

    #[test]
    fn a_token_that_may_be_that_of_several_names_nobody() {
        for tokens in [[100, 100], [100, 120]] {
            let lock = held_with(&tokens);
            let said = with_token(&lock, 120.into()).expect_err("it may have been handed over");
            assert!(said.contains("break_holder"), "{said}");
        }
        assert_eq!(chosen(&[100, 120], 100), Some(100));
        assert_eq!(chosen(&[100, 120], 164), Some(120));
    }

    #[test]
    fn a_token_that_is_not_known_may_be_any() {
        let mut lock = held_with(&[64, 128]);
        lock.holders[1].token = None;
        let said = with_token(&lock, 128.into()).expect_err("it may be this one");
        assert!(said.contains("not yet"), "{said}");
        let found = with_token(&lock, 64.into()).expect("it is known");
        assert_eq!(found.and_then(|holder| holder.token), Some(64.into()));
    }

    #[test]
    fn the_greatest_tokens_do_not_overflow() {
        assert_eq!(chosen(&[u64::MAX - 1], u64::MAX), Some(u64::MAX - 1));
        assert_eq!(chosen(&[u64::MAX], 7), None);
    }
}
