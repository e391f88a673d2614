//! The stream of the [watches](super::watches): what the server is asked to watch, and what it
//! reports.
//!
//! Each watch begins now. A watch that begins in the past would be served by a loop of the server
//! that runs only every 100 ms (`syncWatchersLoop` in `server/storage/mvcc/watchable_store.go`). So
//! what was read before the server has made the watch is read once more: the server's answer says
//! after which revision the watch begins.

use std::collections::HashMap;
use std::future::Future;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error, Event, KeyValue, ResponseHeader, WatchFilterType, WatchOptions, WatchStream,
};

use super::members::Member;
use super::waiting::{Ahead, Awaited, Deleted, Queue, State};
use super::watches::{Watches, watches_of};
use crate::engine::time::Backoff;

/// The pauses between streams. A stream that has lasted for longer than the longest pause was a
/// good one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

impl Watches {
    /// Keeps a stream open from when somebody waits for the first time, also while nobody does. It
    /// is made anew only for somebody who waits.
    pub(super) async fn run(self: Arc<Self>) {
        let time = &self.members.time;
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        loop {
            let Some((id, watched)) = self.first() else {
                self.changed.notified().await;
                continue;
            };
            let (member, began) = (self.members.current(), time.now());
            match self.in_time(self.open(&member, &watched)).await {
                Some(stream) => {
                    self.serve(&member, stream, (id, watched.len())).await;
                    // What the stream has not reported by now, it never will.
                    let all = self.inner.lock().forget_all();
                    all.values().for_each(|waiting| self.wake(waiting));
                }
                None => self.members.leave(&member),
            }
            if time.now() >= began + LAST_PAUSE {
                backoff.reset();
            }
            backoff.wait(time).await;
        }
    }

    /// The first waiter or queue for which the server has to watch something. All the others are
    /// entered as changed.
    fn first(&self) -> Option<(i64, Vec<Watched>)> {
        let mut inner = self.inner.lock();
        let all: Vec<_> = inner
            .waiting
            .keys()
            .chain(inner.queues.keys())
            .copied()
            .collect();
        inner.changed.clone_from(&all);
        all.into_iter()
            .find_map(|id| Some((id, watched(&inner, id)?)))
    }

    async fn open(&self, member: &Arc<Member>, watched: &[Watched]) -> Result<WatchStream, Error> {
        let mut client = self.members.client(member).await?;
        let mut watched = watched.iter().cloned();
        let (key, options) = watched.next().unwrap_or_default();
        let mut stream = client.watch(key, Some(options)).await?;
        for (key, options) in watched {
            stream.watch(key, Some(options)).await?;
        }
        Ok(stream)
    }

    /// Serves a stream until it ends.
    async fn serve(&self, member: &Arc<Member>, mut stream: WatchStream, first: (i64, usize)) {
        // The waiters and queues for which the server has watches, and how many.
        let mut on_server = HashMap::from([first]);
        self.inner.lock().last_response_at = self.members.time.now();
        self.changed.notify_one();
        loop {
            tokio::select! {
                message = stream.message() => {
                    let Ok(Some(message)) = message else { return };
                    let (watch, created) = (message.watch_id(), message.created());
                    if message.canceled() && is_refused(watch, created, &mut on_server) {
                        // The auth token may have expired. A stream keeps the token with which it
                        // was opened for ever.
                        if self.members.settings.may_have_user() {
                            self.in_time(self.log_in(member)).await;
                        }
                        return;
                    }
                    // No other events than deletions are asked for.
                    let deleted = message.events().iter().filter_map(deleted).collect();
                    // The revision after which the watch begins. Servers read it after they have
                    // made the watch. Older ones (3.6.1, 3.5.21) read it before, and have the watch
                    // begin after it. Either way, the watch misses nothing that is later
                    // (`recvLoop` in `server/etcdserver/api/v3rpc/watch.go`).
                    let made_at = message.header().filter(|_| created);
                    self.hear(watch, made_at.map(ResponseHeader::revision), deleted);
                }
                () = self.changed.notified() => {
                    if self.in_time(self.catch_up(&mut stream, &mut on_server)).await.is_none() {
                        return self.members.leave(member);
                    }
                }
                () = self.silent.notified() => return,
            }
        }
    }

    /// Has the server watch what is waited for now, and nothing else.
    async fn catch_up(
        &self,
        stream: &mut WatchStream,
        on_server: &mut HashMap<i64, usize>,
    ) -> Result<(), Error> {
        let changed = take(&mut self.inner.lock().changed);
        for id in changed {
            let watched = watched(&self.inner.lock(), id);
            match watched {
                Some(watched) if !on_server.contains_key(&id) => {
                    on_server.insert(id, watched.len());
                    for (key, options) in watched {
                        stream.watch(key, Some(options)).await?;
                    }
                }
                Some(_) => {}
                None => {
                    let number = on_server.remove(&id).unwrap_or(0);
                    for watch in watches_of(id).into_iter().take(number) {
                        stream.cancel(watch).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn log_in(&self, member: &Arc<Member>) -> Result<(), Error> {
        self.members.client(member).await?.refresh_token().await
    }

    /// `None`: it has failed, or has taken too long.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let members = &self.members;
        let done = members.time.bound(members.patience(), work).await;
        done.ok()?.ok()
    }
}

/// A key, or the first key of a range, and how it is watched.
type Watched = (Vec<u8>, WatchOptions);

/// What the server watches for a waiter or queue. Nothing for a waiter in a queue, since the queue
/// is watched.
fn watched(state: &State, id: i64) -> Option<Vec<Watched>> {
    let [first, second] = watches_of(id).map(options);
    if let Some(Queue { range, .. }) = state.queues.get(&id) {
        let (begin, end) = range.clone();
        // A deletion then shows when the key was created.
        let options = first.with_range(end).with_prev_key();
        return Some(vec![(begin, options)]);
    }
    let Awaited { own, ahead } = &state.waiting.get(&id)?.awaited;
    match ahead {
        Ahead::One(key, _) => Some(vec![
            (own.0.clone().into_bytes(), first),
            (key.clone().into_bytes(), second),
        ]),
        Ahead::Some => None,
    }
}

/// Whether a message that a watch was cancelled is about one that the server has, or was to make;
/// and not about one that we have cancelled ourselves.
fn is_refused(watch: i64, created: bool, on_server: &mut HashMap<i64, usize>) -> bool {
    // Servers newer than 3.4 give the id -1 to a watch that they refuse to make (`recvLoop` in
    // `server/etcdserver/api/v3rpc/watch.go`).
    on_server.remove(&(watch / 2)).is_some() || created
}

fn deleted(event: &Event) -> Option<Deleted> {
    let key = event.kv()?;
    Some(Deleted {
        key: String::from_utf8_lossy(key.key()).into_owned(),
        at: key.mod_revision(),
        created: event.prev_kv().map(KeyValue::create_revision),
    })
}

/// A watch that begins now, and reports deletions only.
fn options(watch: i64) -> WatchOptions {
    let options = WatchOptions::new().with_watch_id(watch);
    options.with_filters([WatchFilterType::NoPut])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_was_refused_is_known_by_any_version() {
        let [own, ahead] = watches_of(7);
        let ours = || HashMap::from([(7, 2)]);
        for watch in [own, ahead] {
            assert!(is_refused(watch, true, &mut ours()), "3.4");
            assert!(is_refused(watch, false, &mut ours()), "ended later");
        }
        assert!(is_refused(-1, true, &mut ours()), "newer servers");
        let [gone, _] = watches_of(8);
        assert!(!is_refused(gone, false, &mut ours()), "ended by ourselves");
    }
}
