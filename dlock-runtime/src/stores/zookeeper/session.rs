//! One session with the servers, over which everything goes.
//!
//! **How long it is sure to last.** The leader ends a session that it has not
//! heard of for its timeout. It hears of one through the server that the client
//! is connected to, which tells it of its clients every half tick. So an answer
//! from that server alone says nothing: a server that is cut off from the leader
//! goes on answering questions, for ten seconds by default, while the leader
//! lets the session expire. What counts is an answer to a *write*, which takes
//! a majority. At that moment the session was alive, and the leader's last news
//! of it were no older than the client's pause between two signs of life, the
//! half tick (a quarter of the timeout at most, as no timeout is below two
//! ticks) and the way there. A lease is therefore counted from the last write
//! that was confirmed, and lasts two thirds of the session's timeout at most, less
//! that pause.
//!
//! Sources: `Learner.ping`, `LearnerHandler` and `SessionTrackerImpl` of
//! ZooKeeper 3.8; ZOOKEEPER-1675 on why a `sync` is no proof either.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use zookeeper_client::{Client, Error, MultiWriteError, OneshotWatcher, SessionState};

use super::errors::{Failed, no_answer, not_connected};
use super::settings::{Scheme, Settings};
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::store::{Context, Scope};

pub(crate) struct Session {
    pub(super) client: Client,
    context: Context,
    /// The longest lease that it can carry.
    pub(super) longest: Duration,
    /// When the last write that was confirmed was sent.
    proven: Mutex<Instant>,
    over: CancellationToken,
}

/// What became of a check of nodes.
pub(super) enum Checked {
    /// All of them are there, and so is the session. When that was asked.
    There(Instant),
    /// This one is not.
    Missing(usize),
}

impl Session {
    /// Opens a session, with the tasks for it on the current runtime.
    pub(super) async fn open(
        settings: &Settings,
        context: &Context,
        deadline: Deadline,
    ) -> Result<Arc<Self>, BackendError> {
        let (place, silence) = (settings.place(), settings.silence(context.patience()));
        let mut connector = Client::connector()
            .with_session_timeout(settings.session_timeout)
            .with_connection_timeout(silence)
            // Who asks again is the keeper, with pauses that do not grow.
            .with_fail_eagerly();
        if let Some(login) = &settings.login {
            connector = match login.scheme {
                Scheme::Sasl => connector.with_sasl(login.sasl()),
                Scheme::Digest => connector.with_auth("digest", &login.digest()),
            };
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &settings.tls {
            connector = connector.with_tls(tls.options());
        }
        let sent_at = context.time.now();
        let cluster = settings.cluster();
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
            .map_err(|error| not_connected(&place, error))?;
        context.events.heard(sent_at);
        Ok(Arc::new(Self {
            longest: longest_lease(client.session_timeout(), silence),
            client,
            context: context.clone(),
            // To open a session is a write.
            proven: Mutex::new(sent_at),
            over: CancellationToken::new(),
        }))
    }

    pub(super) fn scope(&self) -> Scope {
        Scope(self.client.session_id().0.cast_unsigned())
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Resolves when the session has ended, or is of no more use.
    pub(super) async fn ended(&self) {
        self.over.cancelled().await;
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
            tokio::select! {
                // Until now there was a connection, or there is one again.
                _ = states.changed() => self.heard(self.context.time.now()),
                () = self.ended() => {}
            }
        }
    }

    /// Waits for a connection. Nothing is sent without one: the client would
    /// keep it and send it whenever there is one again.
    pub(super) async fn connected(&self, deadline: Deadline) -> Result<(), Failed> {
        if self.is_over() {
            return Err(Failed::Over);
        }
        let connected = self.bound(deadline, self.is_connected()).await;
        connected.map_err(|failed| match failed {
            Failed::TooLate => Failed::NotSent,
            failed => failed,
        })
    }

    async fn is_connected(&self) {
        let mut states = self.client.state_watcher();
        while states.state() != SessionState::SyncConnected {
            states.changed().await;
        }
    }

    /// Waits for an answer to what was sent.
    pub(super) async fn bound<F: Future>(
        &self,
        deadline: Deadline,
        answer: F,
    ) -> Result<F::Output, Failed> {
        let answer = async {
            tokio::select! {
                biased;
                answer = answer => Ok(answer),
                () = self.ended() => Err(Failed::Over),
            }
        };
        let answer = self.context.time.bound(deadline, answer).await;
        answer.unwrap_or(Err(Failed::TooLate))
    }

    /// The same for one command.
    pub(super) async fn answer<T>(
        &self,
        deadline: Deadline,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failed> {
        let sent_at = self.context.time.now();
        let answer = self.bound(deadline, answer).await?;
        let answer = answer.map_err(|error| self.failed(error));
        if matches!(answer, Ok(_) | Err(Failed::Refused(_))) {
            self.heard(sent_at);
        }
        answer
    }

    pub(super) fn failed(&self, error: Error) -> Failed {
        let failed = Failed::of(error);
        if matches!(failed, Failed::Over) {
            self.over.cancel();
        }
        failed
    }

    /// Waits until the watched node changes, or the session ends.
    pub(super) async fn changed(&self, watcher: OneshotWatcher) -> Result<(), Failed> {
        // The client's watcher panics when the client's own task has ended.
        let changed = AssertUnwindSafe(watcher.changed()).catch_unwind();
        let changed = tokio::select! {
            biased;
            () = self.ended() => return Err(Failed::Over),
            changed = changed => changed,
        };
        changed.map(drop).map_err(|_| {
            self.over.cancel();
            Failed::Over
        })
    }

    /// Checks that nodes exist, by a transaction that changes nothing.
    pub(super) async fn check(
        &self,
        paths: impl Iterator<Item = String>,
        deadline: Deadline,
    ) -> Result<Checked, Failed> {
        self.connected(deadline).await?;
        let sent_at = self.context.time.now();
        let answer = {
            let mut question = self.client.new_multi_writer();
            for path in paths {
                // Of any version.
                question
                    .add_check_version(&path, -1)
                    .map_err(|error| self.failed(error))?;
            }
            question.commit()
        };
        match self.bound(deadline, answer).await? {
            Ok(_) => {
                self.prove(sent_at);
                Ok(Checked::There(sent_at))
            }
            Err(MultiWriteError::OperationFailed {
                index,
                source: Error::NoNode,
            }) => Ok(Checked::Missing(index)),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    /// Resolves when there has been no connection for so long.
    pub(super) async fn is_silent_for(&self, limit: Duration) {
        let time = &self.context.time;
        let mut states = self.client.state_watcher();
        while time
            .bound(time.after(limit), self.is_connected())
            .await
            .is_ok()
        {
            states.changed().await;
        }
    }

    /// A write that was sent then has been confirmed.
    pub(super) fn prove(&self, sent_at: Instant) {
        let mut proven = self.proven.lock().unwrap_or_else(PoisonError::into_inner);
        *proven = sent_at.max(*proven);
        drop(proven);
        self.heard(sent_at);
    }

    /// Some server has answered what was sent then.
    pub(super) fn heard(&self, sent_at: Instant) {
        self.context.events.heard(sent_at);
    }

    /// When a lease of this ttl begins whose node was seen by what was sent then.
    pub(super) fn begin(&self, seen_at: Instant, ttl: Duration) -> Instant {
        let proven = *self.proven.lock().unwrap_or_else(PoisonError::into_inner);
        seen_at.min(proven + self.longest.saturating_sub(ttl))
    }
}

/// The longest lease on a session of this timeout, whose client takes a server
/// for dead that is silent for so long. It gives a sign of life after three
/// eighths of that (`zookeeper-client`, `Session::reset_timeout`).
fn longest_lease(timeout: Duration, silence: Duration) -> Duration {
    // More is not taken for what was meant.
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
