//! A process at a real store, without an engine.

use std::collections::HashSet;
use std::time::Duration;

use dlock::backend::{LockInfo, Owner, Renewed, Request};
use dlock::bare::{Bare, Said};
use dlock::store::{
    Applied, Attempt, Deadline, Due, Ending, Failure, Freed, Next, Store, Take, Want,
};

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::reference::Answer;
use crate::run::Process;
use crate::support::wait::STEP;

pub(crate) struct AtStore<S: Store> {
    pub(crate) bare: Bare<S>,
    pub(crate) hears: Option<Hears>,
}

/// The ends of locks that those hear who wait for votes.
pub(crate) struct Hears {
    pub(crate) told: UnboundedReceiver<PushInfo>,
    pub(crate) _connection: MultiplexedConnection,
}

impl Hears {
    async fn next(&mut self, within: Duration) -> Option<Said> {
        loop {
            let PushInfo { kind, data } = match within.is_zero() {
                true => self.told.try_recv().ok()?,
                false => tokio::time::timeout(within, self.told.recv())
                    .await
                    .ok()??,
            };
            if let (PushKind::Message, [Value::BulkString(channel), _]) = (kind, &data[..]) {
                let channel = String::from_utf8_lossy(channel);
                let key = channel.strip_prefix("dlock:wake:dlock:{")?;
                return Some(Said::Freed {
                    key: key.trim_end_matches('}').to_owned(),
                });
            }
        }
    }
}

/// Generous: a machine may be slow.
fn limit() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn failed(failure: Failure) -> String {
    format!("{failure:?}")
}

/// What was not done, as a file was busy, is asked for again: that is the engine's part.
async fn repeated<T>(mut ask: impl AsyncFnMut() -> Result<T, Failure>) -> Result<T, String> {
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(failure) if failure.applied == Applied::No && failure.next != Next::Stop => {
                tokio::time::sleep(STEP).await;
            }
            Err(failure) => return Err(failed(failure)),
        }
    }
}

/// Opens a store, however busy it is.
pub(crate) async fn opened<S: Store>(
    open: impl AsyncFnMut() -> Result<Bare<S>, Failure>,
) -> Bare<S> {
    repeated(open).await.expect("our own server")
}

impl<S: Store<Record = ()>> Process for AtStore<S> {
    async fn take(&mut self, request: &Request, want: Want) -> Result<(Answer, u64), String> {
        let store = &self.bare.store;
        let taken = repeated(async || {
            let mut notes = S::Notes::default();
            store
                .take(request, want, Attempt::new(limit(), &mut notes))
                .await
        });
        match taken.await? {
            Take::Granted(granted) => Ok((Answer::Granted, granted.token)),
            Take::Busy => Ok((Answer::Busy, 0)),
            Take::Queued => Ok((Answer::Queued, 0)),
            Take::Done => Ok((Answer::Done, 0)),
            _ => Err("an answer that this store has not".into()),
        }
    }

    async fn renew(&mut self, requests: &[Request]) -> Result<Vec<bool>, String> {
        let mut due: Vec<Due<S>> = requests
            .iter()
            .map(|request| Due::new(request.clone(), ()))
            .collect();
        let renewed = self.bare.store.renew(&mut due, limit()).await;
        let is_extended = |renewed| matches!(renewed, Renewed::Extended { .. });
        renewed
            .into_iter()
            .map(|renewed| renewed.map(is_extended).map_err(failed))
            .collect()
    }

    async fn release(&mut self, request: &Request, ending: Ending) -> Result<bool, String> {
        let store = &self.bare.store;
        let released = repeated(async || {
            let mut notes = S::Notes::default();
            let released = store.release(
                request,
                Some(&()),
                ending,
                Attempt::new(limit(), &mut notes),
            );
            released.await
        });
        Ok(released.await? == Freed::Released)
    }

    async fn forget(&mut self, key: &str) -> Result<bool, String> {
        let store = &self.bare.store;
        let forgotten = repeated(async || {
            let mut notes = S::Notes::default();
            store.forget(key, Attempt::new(limit(), &mut notes)).await
        });
        forgotten.await
    }

    async fn look(
        &mut self,
        key: &str,
        waiters: &[Request],
        beat: bool,
    ) -> Result<Vec<bool>, String> {
        let who = waiters.iter().map(|request| (request.owner, request.mode));
        let mut waited = [self.bare.waited(key, who)];
        let looked = self.bare.store.recheck(&mut waited, beat, limit());
        looked.await.map_err(failed)?;
        let [waited] = waited;
        Ok(waited.waiters.iter().map(|waiter| waiter.wake).collect())
    }

    async fn farewell(&mut self) {
        self.bare.store.farewell(limit()).await;
    }

    async fn disown(
        &mut self,
        key: &str,
        place: &str,
        known: &HashSet<Owner>,
    ) -> Result<(), String> {
        let knows = |owner| known.contains(&owner);
        let store = &self.bare.store;
        let undone = store.disown(key, place, &knows, limit());
        undone.await.map_err(failed)
    }

    async fn inspect(&mut self, key: &str) -> Result<Option<LockInfo>, String> {
        let mut notes = S::Notes::default();
        let found = self
            .bare
            .store
            .inspect(key, Attempt::new(limit(), &mut notes));
        found.await.map_err(failed)
    }

    async fn list(&mut self, prefix: &str) -> Result<Vec<LockInfo>, String> {
        let mut notes = S::Notes::default();
        loop {
            let found = self
                .bare
                .store
                .list(prefix, Attempt::new(limit(), &mut notes));
            if let Some(found) = found.await.map_err(failed)? {
                return Ok(found);
            }
        }
    }

    fn knows(&mut self, request: &Request) {
        self.bare.knows(request);
    }

    async fn says(&mut self, within: Duration) -> Option<Said> {
        match &mut self.hears {
            Some(hears) => hears.next(within).await,
            None => self.bare.says(within).await,
        }
    }
}

/// When it is by the store's clock what the reference says that it is; 0 before it was
/// looked at.
pub(crate) struct Clock(pub(crate) i64);

impl Clock {
    /// By how much the times that are kept have to be moved for so much time to pass. Time
    /// goes forward only: what has passed by itself is not undone.
    pub(crate) fn shift(&self, pass: u64, now: i64) -> i64 {
        (pass.cast_signed() - (now - self.0)).max(0)
    }

    /// They have been moved. How late it is at the store.
    pub(crate) fn passes(&mut self, pass: u64, now: i64) -> i64 {
        self.0 = match self.0 {
            0 => now,
            before => now.min(before + pass.cast_signed()),
        };
        now - self.0
    }
}
