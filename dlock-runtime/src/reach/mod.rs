//! Why a store cannot be reached: whether its servers refuse connections, and
//! what is there if it is not the store.
//!
//! The clients of the stores do not say it alike. Some keep a refusal to
//! themselves and try again until the time is over, and none knows the other
//! servers' words. So it is asked here, over connections of its own, for all
//! stores: when connecting takes long or has failed, and when a call has no word
//! of the store. Nothing is asked while the store answers.

#[cfg(feature = "servers")]
mod dial;
#[cfg(feature = "servers")]
mod identify;

/// Without a store that is reached over a network there is nobody to ask.
#[cfg(not(feature = "servers"))]
mod nobody {
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

#[cfg(not(feature = "servers"))]
use self::nobody::{each, mismatch, refusals};
#[cfg(feature = "servers")]
use self::{dial::each, dial::refusals, identify::mismatch};
use crate::backend::{Backend, BackendError, BackendErrorKind, Finding, Level, Protocol, Servers};
use crate::error::ErrorCause;

/// A store that is there has answered by then, as a rule.
const GRACE: Duration = Duration::from_millis(50);

/// Many calls that fail together are told of one look.
const FRESH: Duration = Duration::from_millis(250);

/// Looks whether the servers of one store can be reached. A copy is the same.
#[derive(Clone, Debug)]
pub(crate) struct Reach(Option<Arc<Inner>>);

struct Inner {
    backend: Arc<dyn Backend>,
    /// The manager's own, which has timers and I/O.
    runtime: Handle,
    /// One look at a time.
    looking: Mutex<()>,
    /// When the last look has ended, and what it has found.
    last: watch::Sender<Option<(Instant, Option<Refused>)>>,
}

/// Servers that refuse connections.
#[derive(Clone)]
pub(crate) struct Refused {
    by: Vec<String>,
    /// Whether there is none that does not.
    all: bool,
    cause: ErrorCause,
    /// Who does.
    name: String,
}

impl Reach {
    /// For a store whose own work is done on this runtime. One that does not say
    /// where its servers are is not looked for.
    pub(crate) fn new(backend: &Arc<dyn Backend>, runtime: &Handle) -> Self {
        // The runtime of a local store is its user's, and need not have I/O.
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

    /// Connects by `start`, to be polled on the manager's runtime. Refused
    /// connections end it at once: in a service that runs, they may be a restart
    /// that is to be outlived, and at its start they are a mistake.
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
        let looks = inner
            .runtime
            .spawn(async move { each(&servers.hosts).await });
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

    /// Looks, and does not wait for what is found. Works outside of a runtime.
    pub(crate) fn look(&self) {
        if let Some(inner) = &self.0
            && inner.found_within(FRESH).is_none()
            && inner.looking.try_lock().is_ok()
        {
            let looking = Arc::clone(inner);
            // Ends by itself, within two looks.
            drop(inner.runtime.spawn(async move { looking.look().await }));
        }
    }

    /// The same error, or the refusal behind it that the last look has found, if
    /// that is no longer ago than this.
    pub(crate) fn explained_within(&self, past: Duration, error: BackendError) -> BackendError {
        let found = self.0.as_ref().and_then(|inner| inner.found_within(past));
        match found.flatten() {
            Some(refused) => refused.behind(error),
            None => error,
        }
    }

    /// The same error, or the refusal behind it if it does not say so itself.
    /// Looks, which takes no more than a moment.
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
        let look = inner.runtime.spawn(async move { looking.look().await });
        // An error means that the manager has ended.
        look.await.ok().flatten()
    }
}

impl Refused {
    /// What is told in place of an error, or together with it: where others of
    /// the servers are there, they may have their own part in it.
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

    /// No server is there.
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
        // A store may have put it behind an error of its own, which tells it.
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
        // Its end counts: those who have waited for it share it.
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
            cause: ErrorCause::told(cause),
            name: name.unwrap_or_else(|| self.backend.capabilities().name.to_owned()),
        })
    }

    /// The error of a start that failed, and before it what answers in place of
    /// the store.
    async fn identified(&self, error: BackendError) -> BackendError {
        let Some(servers) = self.backend.servers() else {
            return error;
        };
        // What a database answers with, it has understood: it agrees on encryption by
        // itself.
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
