//! One session with the servers, which is used for everything.
//!
//! **How long it is sure to last.** The leader ends a session that it has not heard of for its
//! timeout. It hears of a session through the server that the client is connected to, which reports
//! its clients every half tick. So an answer from that server alone proves nothing: a server that
//! is cut off from the leader goes on answering questions, for ten seconds by default, while the
//! leader lets the session expire. What counts is the answer to a *write*, which takes a majority.
//! When the write was done, the session was alive. And the leader had heard of it no longer ago
//! than the client's pause between two signs of life, plus the half tick (at most a quarter of the
//! timeout, since no timeout is below two ticks), plus the way there. So a lease counts from the
//! last write that was confirmed, and lasts at most two thirds of the session's timeout, less that
//! pause.
//!
//! Sources: `Learner.ping`, `LearnerHandler` and `SessionTrackerImpl` of ZooKeeper 3.8;
//! ZOOKEEPER-1675 on why a `sync` is no proof either.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{OptionFuture, join};
use tokio_util::sync::CancellationToken;
use zookeeper_client::{
    Client, Error, MultiReadResult, MultiWriteError, MultiWriter, SessionState, Stat,
};

use super::errors::{ErrorClass, classify, described, no_answer};
use super::settings::Settings;
use super::wanted::Wanted;
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::engine::time::Backoff;
use crate::key::Shown;
use crate::outlast::outlast;
use crate::store::{Applied, Cause, Context, Failure, Scope};
use crate::sync::Mutex;

/// How many nodes or folders are looked at by one question. It must stay well below the megabyte
/// that the server takes (`jute.maxbuffer`).
pub(super) const AT_ONCE: usize = 400;

/// The pauses between two sweeps: the first and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);

pub(crate) struct Session {
    pub(super) client: Client,
    pub(super) wanted: Wanted,
    /// The servers, as messages name them.
    pub(super) place: String,
    pub(super) context: Context,
    /// The longest lease that the session can carry.
    pub(super) longest: Duration,
    /// When the last confirmed write was sent.
    proven: Mutex<Instant>,
    pub(super) over: CancellationToken,
}

impl Session {
    /// Opens a session. Its tasks run on the current runtime.
    pub(super) async fn open(
        settings: &Settings,
        context: &Context,
        deadline: Deadline,
    ) -> Result<Arc<Self>, BackendError> {
        let (place, silence) = (settings.place(), settings.silence(context.patience()));
        let connector = settings.connector(silence);
        let sent_at = context.time.now();
        let cluster = settings.hosts.join(",");
        let connect = async {
            #[cfg(feature = "tls")]
            if settings.encrypted {
                return connector.secure_connect(&cluster).await;
            }
            connector.connect(&cluster).await
        };
        let client = context
            .time
            .bound(deadline, connect)
            .await
            .map_err(|_| no_answer(&place))?
            .map_err(|error| described(&place, error))?;
        context.events.answered(sent_at);
        Ok(Arc::new(Self {
            longest: longest_lease(client.session_timeout(), silence),
            client,
            wanted: Wanted::default(),
            place,
            context: context.clone(),
            // Opening a session is a write.
            proven: Mutex::new(sent_at),
            over: CancellationToken::new(),
        }))
    }

    pub(super) fn scope(&self) -> Scope {
        Scope(self.client.session_id().0.cast_unsigned())
    }

    /// Whether it has ended, or is of no more use.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Follows the session to its end.
    pub(super) async fn follow(&self) -> SessionState {
        let mut states = self.client.state_watcher();
        loop {
            let state = states.state();
            if state.is_terminated() {
                self.over.cancel();
            }
            if self.is_over() {
                return state;
            }
            let changed = self.over.run_until_cancelled(states.changed()).await;
            if changed.is_some() {
                // There was a connection until now, or there is one again.
                self.context.events.answered(self.context.time.now());
            }
        }
    }

    /// Sends a question once there is a connection. Returns the answer, and when the question was
    /// sent. `None`: there is no node at this path, or above it. Nothing is sent without a
    /// connection, since the client would keep it and send it whenever there is one again.
    pub(super) async fn ask<'s, T, F>(
        &'s self,
        path: &str,
        deadline: Deadline,
        send: impl FnOnce(&'s Client) -> F,
    ) -> Result<(Option<T>, Instant), Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        if self.bound(deadline, self.until_connected()).await.is_none() {
            return Err(Failure::not_sent());
        }
        let sent_at = self.context.time.now();
        let unanswered = Failure::silent(Applied::Unknown { sent_at });
        let said = self.bound(deadline, send(&self.client)).await;
        let answer = match said.ok_or_else(|| unanswered.clone())? {
            Ok(answer) => Ok(Some(answer)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => match classify(&error) {
                ErrorClass::Refused => Err(self.refused(path, error)),
                ErrorClass::Lost => return Err(unanswered),
                ErrorClass::Over => {
                    self.over.cancel();
                    return Err(unanswered);
                }
            },
        };
        self.context.events.answered(sent_at);
        Ok((answer?, sent_at))
    }

    /// Waits for an answer. `None`: it did not come in time, or the session has ended.
    async fn bound<F: Future>(&self, deadline: Deadline, answer: F) -> Option<F::Output> {
        let answer = self.over.run_until_cancelled(answer);
        let answer = self.context.time.bound(deadline, answer).await;
        answer.ok().flatten()
    }

    pub(super) async fn until_connected(&self) {
        let mut states = self.client.state_watcher();
        while states.state() != SessionState::SyncConnected {
            states.changed().await;
        }
    }

    /// The nodes of a folder, and when that was asked; none if there is no folder. With `synced`,
    /// as they are now, and not as they were when this server last heard of the others.
    pub(super) async fn list(
        &self,
        folder: &str,
        synced: bool,
        deadline: Deadline,
    ) -> Result<(Vec<String>, Instant), Failure> {
        let (found, sent_at) = self.children(folder, synced, deadline).await?;
        let names = found.map(|(names, _)| names);
        Ok((names.unwrap_or_default(), sent_at))
    }

    /// The same, and what the server says of the folder. `None`: it is not there.
    pub(super) async fn children(
        &self,
        folder: &str,
        synced: bool,
        deadline: Deadline,
    ) -> Result<(Option<(Vec<String>, Stat)>, Instant), Failure> {
        let listed = self.ask(folder, deadline, |client| {
            // Both are sent at once, and the server runs them in this order.
            let synced = OptionFuture::from(synced.then(|| client.sync(folder)));
            let listed = client.get_children(folder);
            async {
                let (synced, listed) = join(synced, listed).await;
                synced.transpose()?;
                listed
            }
        });
        listed.await
    }

    /// The content of these nodes, by one question: an answer for each.
    pub(super) async fn read(
        &self,
        place: &str,
        paths: &[String],
        deadline: Deadline,
    ) -> Result<Vec<Result<(Vec<u8>, Stat), Error>>, Failure> {
        let looked = self.ask(place, deadline, |client| async {
            let answers = {
                let mut question = client.new_multi_reader();
                for path in paths {
                    question.add_get_data(path)?;
                }
                question.commit()
            };
            answers.await
        });
        let answers = looked.await?.0.unwrap_or_default();
        if answers.len() != paths.len() {
            let (entity, reason) = ("a multi read", &"it has not an answer for each");
            return Err(self.refused(place, Error::UnmarshalError { entity, reason }));
        }
        let answers = answers.into_iter();
        let read = answers.map(|answer| match answer {
            MultiReadResult::Data { data, stat } => Ok((data, stat)),
            MultiReadResult::Error { err } => Err(err),
            _ => Err(Error::NoNode),
        });
        Ok(read.collect())
    }

    /// Runs these steps as one transaction. Returns when it was sent; or which step was refused,
    /// and why.
    pub(super) async fn transact(
        &self,
        place: &str,
        deadline: Deadline,
        steps: impl FnOnce(&mut MultiWriter<'_>) -> Result<(), Error>,
    ) -> Result<Result<Instant, (usize, Error)>, Failure> {
        let done = self.ask(place, deadline, |client| {
            let mut writer = client.new_multi_writer();
            let sent = steps(&mut writer).map(|()| writer.commit());
            async {
                match sent?.await {
                    Ok(_) => Ok(Ok(())),
                    Err(MultiWriteError::OperationFailed { index, source })
                        if classify(&source) == ErrorClass::Refused =>
                    {
                        Ok(Err((index, source)))
                    }
                    Err(error) => Err(error.into()),
                }
            }
        });
        let (said, sent_at) = done.await?;
        Ok(said.unwrap_or(Err((0, Error::NoNode))).map(|()| sent_at))
    }

    /// Checks that nodes exist, by a transaction that changes nothing but the content of those that
    /// have another one here. Returns when it was sent; or the index of a node that is missing, or
    /// whose content cannot be changed.
    pub(super) async fn check(
        &self,
        nodes: &[(String, Option<Arc<[u8]>>)],
        deadline: Deadline,
    ) -> Result<Result<Instant, (usize, Error)>, Failure> {
        let place = nodes.first().map_or("", |(path, _)| path.as_str());
        let checked = self.transact(place, deadline, |steps| {
            // Of any version, since an operator may have written the same content again (`broken`).
            // No node is made.
            nodes.iter().try_for_each(|(path, content)| match content {
                Some(content) => steps.add_set_data(path, content, None),
                None => steps.add_check_version(path, -1),
            })
        });
        let checked = checked.await?;
        match &checked {
            Ok(sent_at) => self.prove(*sent_at),
            // An answer about a node that was not asked for.
            Err((index, error)) if *index >= nodes.len() => {
                return Err(self.refused(place, error.clone()));
            }
            Err(_) => {}
        }
        Ok(checked)
    }

    /// Deletes the nodes that nobody wants. Begins when a creation is in doubt for the first time, or
    /// when a notice to a waiter is left. From then on, it looks after each of these, over each new
    /// connection, and now and again.
    pub(super) async fn sweep(&self) -> Infallible {
        let time = &self.context.time;
        let (mut doubts, mut states) = (self.wanted.doubts(), self.client.state_watcher());
        // The session itself has the sender, so this waits.
        let _ = doubts.wait_for(|&number| number > 0).await;
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        let mut stuck = HashSet::new();
        loop {
            doubts.mark_unchanged();
            // A sweep that fails is repeated.
            let _ = self.sweep_once(&mut stuck).await;
            tokio::select! {
                () = backoff.wait(time) => {}
                _ = doubts.changed() => backoff.reset(),
                _ = states.changed() => backoff.reset(),
            }
        }
    }

    /// `stuck` are the nodes of which it was said that they cannot be deleted.
    async fn sweep_once(&self, stuck: &mut HashSet<String>) -> Result<(), Failure> {
        let deadline = self.context.time.after(self.context.request_timeout);
        let (root, client) = ("/", &self.client);
        let listed = self.ask(root, deadline, |_| {
            // Both are sent at once, and the server runs them in this order.
            let (synced, listed) = (client.sync(root), client.list_ephemerals(root));
            async {
                let (synced, listed) = join(synced, listed).await;
                synced?;
                listed
            }
        });
        let unwanted = self.wanted.not_among(listed.await?.0.unwrap_or_default());
        // At the end of the manager, a lock may be kept (`min_hold`) that nobody here knows any
        // more.
        if self.context.stopped.is_cancelled() {
            return Ok(());
        }
        for path in unwanted {
            let deleted = self.ask(&path, deadline, |client| client.delete(&path, None));
            match deleted.await {
                Ok(_) => outlast(|| {
                    tracing::info!(
                        target: "dlock::store",
                        "a node came after who wanted it had gone, and was deleted: {}",
                        Shown(&path)
                    );
                }),
                // It stays until the session ends, and must not keep the others there.
                Err(Failure {
                    cause: Cause::Error(error),
                    ..
                }) => {
                    if stuck.insert(path) {
                        outlast(|| {
                            tracing::warn!(
                                target: "dlock::store",
                                "a node that nobody wants cannot be deleted, and stays until the \
                                 session ends: {error}"
                            );
                        });
                    }
                }
                Err(unanswered) => return Err(unanswered),
            }
        }
        Ok(())
    }

    /// The failure if the server refuses what it was asked for there.
    pub(super) fn refused(&self, path: &str, error: Error) -> Failure {
        let place = format!("{}, {}", self.place, Shown(path));
        Failure::stop(described(place, error))
    }

    /// A write that was sent at this time was confirmed.
    pub(super) fn prove(&self, sent_at: Instant) {
        let mut proven = self.proven.lock();
        *proven = sent_at.max(*proven);
    }

    /// When a lease of this ttl begins. Its node was seen by a question that was sent at `seen_at`.
    /// The lease begins so early that the session is sure to outlast it.
    pub(super) fn begin(&self, seen_at: Instant, ttl: Duration) -> Instant {
        let proven = *self.proven.lock();
        seen_at.min(proven + self.longest.saturating_sub(ttl))
    }
}

/// The longest lease on a session of this timeout. Its client gives up a server that is silent for
/// `silence`, and gives a sign of life after three eighths of that (`zookeeper-client`,
/// `Session::reset_timeout`).
fn longest_lease(timeout: Duration, silence: Duration) -> Duration {
    // In place of a longer silence, the client takes two fifths of the timeout
    // (`Session::calc_tick_timeout`).
    let silence = if silence > timeout * 3 / 5 {
        timeout * 2 / 5
    } else {
        silence
    };
    timeout * 2 / 3 - silence * 3 / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_before_the_leader_may_end_its_session() {
        let timeout = Duration::from_secs(20);
        for silence in [0, 2, 3, 6, 12, 13, 100].map(Duration::from_secs) {
            let sign_of_life = match silence {
                silence if silence > timeout * 3 / 5 => timeout * 3 / 20,
                silence => silence * 3 / 8,
            };
            let longest = longest_lease(timeout, silence);
            assert!(
                longest + sign_of_life + timeout / 4 <= timeout,
                "{silence:?}"
            );
            assert!(longest >= timeout * 2 / 5, "{silence:?}: {longest:?}");
        }
    }
}
