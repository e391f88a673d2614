//! Finds out why a store cannot be reached: whether its servers refuse connections, and what
//! answers there if it is not the store.
//!
//! The clients of the stores report this differently. Some do not report a refusal and try again
//! until the time is over, and none recognizes the protocol of another server. So this module
//! asks, over connections of its own, for all stores: when connecting takes long or has failed,
//! and when a call gets no answer. While the store answers, it asks nothing.

#[cfg(feature = "servers")]
mod hosts;

/// Without a store that is reached over a network there are no servers to ask.
#[cfg(not(feature = "servers"))]
mod hosts {
    pub(super) async fn refusals(_: &[String]) -> Option<(Vec<String>, std::io::Error)> {
        None
    }

    pub(super) async fn each(_: &[String]) -> Vec<(String, std::io::Result<std::time::Duration>)> {
        Vec::new()
    }

    pub(super) async fn mismatch(_: &crate::backend::Servers) -> Option<String> {
        None
    }
}

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};

use self::hosts::{each, mismatch, refusals};
use crate::backend::{Backend, BackendError, BackendErrorKind, Finding, Level, Protocol, Servers};
use crate::error::ErrorCause;
use crate::executor::{run_on, spawn};

/// A store that runs has usually answered by then.
const GRACE: Duration = Duration::from_millis(50);

/// Calls that fail within this time share the result of one look.
const FRESH: Duration = Duration::from_millis(250);

/// Checks whether the servers of one store can be reached. Clones share the results.
#[derive(Clone, Debug)]
pub(crate) struct Reach(Option<Arc<Inner>>);

struct Inner {
    backend: Arc<dyn Backend>,
    /// The manager's own runtime, which has timers and I/O.
    runtime: Handle,
    /// Held during a look, so that there is only one at a time.
    looking: Mutex<()>,
    /// When the last look ended, and what it found.
    last: watch::Sender<Option<(Instant, Option<Refused>)>>,
}

/// Servers that refuse connections.
#[derive(Clone)]
pub(crate) struct Refused {
    by: Vec<String>,
    /// Whether all servers of the store refuse.
    all: bool,
    cause: ErrorCause,
    /// The name of the store's servers, for messages.
    name: String,
}

impl Reach {
    /// For a store whose background work runs on this runtime. Does nothing for a store that does
    /// not say where its servers are.
    pub(crate) fn new(backend: &Arc<dyn Backend>, runtime: &Handle) -> Self {
        // The runtime of a local store belongs to its user, and may have no I/O.
        let elsewhere = !backend.capabilities().local && backend.servers().is_some();
        Self(elsewhere.then(|| {
            Arc::new(Inner {
                backend: Arc::clone(backend),
                runtime: runtime.clone(),
                looking: Mutex::default(),
                last: watch::Sender::default(),
            })
        }))
    }

    /// Runs `start`; must be polled on the manager's runtime. Refused connections end it at once:
    /// in a running service, they may be a restart of the store that will soon be over, but when
    /// a service starts, they are a mistake.
    pub(crate) async fn while_starting(
        &self,
        start: impl Future<Output = Result<(), BackendError>>,
    ) -> Result<(), BackendError> {
        let Some(inner) = &self.0 else {
            return start.await;
        };
        let refused = async {
            tokio::time::sleep(GRACE).await;
            match inner.refused().await {
                Some(refused) if refused.all => refused.error(),
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            started = start => match started {
                Ok(()) => Ok(()),
                Err(error) => {
                    let error = self.explained(error).await;
                    Err(inner.identified(error).await)
                },
            },
            refused = refused => Err(refused),
        }
    }

    /// Whether each of the servers takes a connection.
    pub(crate) async fn each(&self) -> Vec<Finding> {
        let Some(inner) = &self.0 else {
            return Vec::new();
        };
        let Some(servers) = inner.backend.servers() else {
            return Vec::new();
        };
        let looks = run_on(&inner.runtime, async move { each(&servers.hosts).await });
        let looks = looks.await.unwrap_or_default().into_iter();
        let told = looks.map(|(host, reached)| match reached {
            Ok(took) => Finding::new(
                Level::Ok,
                "server",
                format!("{host}: reached in {took:.1?}"),
            ),
            Err(error) => Finding::new(
                Level::Warn,
                "server",
                format!(
                    "{host}: not reached ({error}); see that it runs, and that the store URL names \
                     its host and port"
                ),
            ),
        });
        told.collect()
    }

    /// Starts a look without waiting for its result. Works outside of a runtime.
    pub(crate) fn look(&self) {
        if let Some(inner) = &self.0
            && inner.found_within(FRESH).is_none()
            && inner.looking.try_lock().is_ok()
        {
            let looking = Arc::clone(inner);
            // Not joined: the task ends after at most two looks.
            spawn(&inner.runtime, async move { drop(looking.look().await) });
        }
    }

    /// The same error, or the refusal that the last look found to be its reason, if that look
    /// ended at most `past` ago.
    pub(crate) fn explained_within(&self, past: Duration, error: BackendError) -> BackendError {
        let found = self.0.as_ref().and_then(|inner| inner.found_within(past));
        match found.flatten() {
            Some(refused) => refused.behind(error),
            None => error,
        }
    }

    /// The same error, or the refusal that is its reason, if the error does not mention it
    /// itself. Looks, which takes only a moment.
    pub(crate) async fn explained(&self, error: BackendError) -> BackendError {
        if error.kind() != BackendErrorKind::Unavailable || says_refused(&error) {
            return error;
        }
        match self.refused().await {
            Some(refused) => refused.behind(error),
            None => error,
        }
    }

    async fn refused(&self) -> Option<Refused> {
        let inner = self.0.as_ref()?;
        let looking = Arc::clone(inner);
        // Without an answer the manager has ended.
        run_on(&inner.runtime, async move { looking.look().await })
            .await
            .flatten()
    }
}

impl Refused {
    /// The error to report: the refusal instead of `error` if all servers refuse, and both
    /// otherwise, since the servers that accept connections may be part of the reason.
    fn behind(&self, error: BackendError) -> BackendError {
        if self.all {
            return self.error();
        }
        let by = self.by.join(", ");
        let refuses = if self.by.len() == 1 {
            "refuses"
        } else {
            "refuse"
        };
        BackendError::new(error.kind(), format!("{error}; {by} {refuses} connections"))
            .caused_by(self.cause.clone())
    }

    /// The error for servers that all refuse connections.
    fn error(&self) -> BackendError {
        let Self {
            name, by, cause, ..
        } = self;
        BackendError::unavailable(format!(
            "connections to {name} at {} are refused: {}; check that it runs and that the \
             store URL leads there",
            by.join(", "),
            cause.error()
        ))
        .caused_by(cause.clone())
    }
}

fn says_refused(error: &BackendError) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        // The cause of a `BackendError` whose message already contains it is not in `source`.
        cause = match error.downcast_ref::<BackendError>() {
            Some(error) => error.cause(),
            None => error.source(),
        };
    }
    false
}

impl Inner {
    async fn look(&self) -> Option<Refused> {
        let _one_at_a_time = self.looking.lock().await;
        if let Some(found) = self.found_within(FRESH) {
            return found;
        }
        let refused = self.refused().await;
        // The end of the look counts, so that the calls that waited for it share its result.
        self.last
            .send_replace(Some((Instant::now(), refused.clone())));
        refused
    }

    fn found_within(&self, past: Duration) -> Option<Option<Refused>> {
        let last = self.last.borrow();
        let (_, found) = last.as_ref().filter(|(at, _)| at.elapsed() <= past)?;
        Some(found.clone())
    }

    /// Which of the servers refuse connections.
    async fn refused(&self) -> Option<Refused> {
        let Servers { hosts, name, .. } = self.backend.servers()?;
        let (by, cause) = refusals(&hosts).await?;
        Some(Refused {
            all: by.len() == hosts.len(),
            by,
            cause: ErrorCause::in_message(cause),
            name: name.unwrap_or_else(|| self.backend.capabilities().name.to_owned()),
        })
    }

    /// Adds to the error of a failed start what answers instead of the store, if that is found
    /// out.
    async fn identified(&self, error: BackendError) -> BackendError {
        let Some(servers) = self.backend.servers() else {
            return error;
        };
        // If a database answered with an error, it understood the client: encryption is
        // negotiated within its protocol.
        let is_told = error.kind() == BackendErrorKind::Unsupported
            || error.kind() == BackendErrorKind::Config
                && matches!(servers.protocol, Protocol::Postgres | Protocol::MySql);
        if is_told || says_refused(&error) {
            return error;
        }
        match mismatch(&servers).await {
            Some(found) => {
                let message = format!("{found} ({error})");
                BackendError::new(error.kind(), message).with_cause(error)
            }
            None => error,
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.servers().fmt(f)
    }
}
