//! Why a store cannot be reached: whether its servers refuse connections, and
//! what is there if it is not the store.
//!
//! The clients of the stores do not say it alike. Some keep a refusal to
//! themselves and try again until the time is over, and none knows the other
//! servers' words. So it is asked here, over connections of its own, for all
//! stores: when connecting takes long or has failed, and when a call has no word
//! of the store. Nothing is asked while the store answers.

#[cfg(feature = "servers")]
mod identify;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::backend::{Backend, BackendError, BackendErrorKind, Servers};

/// A store that is there has answered by then, as a rule.
const GRACE: Duration = Duration::from_millis(50);

/// A refusal comes within a round trip. A call does not wait longer to be told.
const LOOK: Duration = Duration::from_millis(100);

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
    looking: tokio::sync::Mutex<()>,
    last: Mutex<Option<Look>>,
}

/// What a look has found.
#[derive(Clone)]
struct Look {
    at: Instant,
    refused: Option<BackendError>,
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
                looking: tokio::sync::Mutex::default(),
                last: Mutex::default(),
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
                Some(error) => error,
                None => std::future::pending().await,
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

    /// The refusal that the last look has found, if that is no longer ago.
    pub(crate) fn refused_within(&self, past: Duration) -> Option<BackendError> {
        self.0.as_ref()?.found_within(past)?.refused
    }

    /// The same error, or the refusal behind it if it does not say so itself.
    pub(crate) async fn explained(&self, error: BackendError) -> BackendError {
        if error.kind() != BackendErrorKind::Unavailable || says_refused(&error) {
            return error;
        }
        self.refused().await.unwrap_or(error)
    }

    /// Whether connections are refused now. Waits for no more than a moment.
    pub(crate) async fn refused(&self) -> Option<BackendError> {
        let inner = self.0.as_ref()?;
        let looking = Arc::clone(inner);
        let look = inner.runtime.spawn(async move { looking.look().await });
        // An error means that the manager has ended.
        look.await.ok().flatten()
    }
}

fn says_refused(error: &BackendError) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = error.source();
    }
    false
}

impl Inner {
    async fn look(&self) -> Option<BackendError> {
        let _one_at_a_time = self.looking.lock().await;
        if let Some(look) = self.found_within(FRESH) {
            return look.refused;
        }
        let at = Instant::now();
        let refused = tokio::time::timeout(LOOK, self.refused()).await;
        let refused = refused.ok().flatten();
        *self.last() = Some(Look {
            at,
            refused: refused.clone(),
        });
        refused
    }

    fn found_within(&self, past: Duration) -> Option<Look> {
        let last = self.last();
        last.as_ref()
            .filter(|look| look.at.elapsed() <= past)
            .cloned()
    }

    fn last(&self) -> MutexGuard<'_, Option<Look>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why, if each of the hosts refuses connections.
    async fn refused(&self) -> Option<BackendError> {
        let Servers { hosts, .. } = self.backend.servers()?;
        let error = all_refuse(&hosts).await?;
        let store = self.backend.capabilities().name;
        let told = BackendError::unavailable(format!(
            "{store} at {} refuses connections: {error}; check that it runs and that the store \
             URL leads there",
            hosts.join(", ")
        ));
        Some(told.with_source(error))
    }

    /// The error of a start that failed, and before it what answers in place of
    /// the store.
    #[cfg(feature = "servers")]
    async fn identified(&self, error: BackendError) -> BackendError {
        let Some(servers) = self.backend.servers() else {
            return error;
        };
        // What a database answers with, it has understood.
        let is_told = error.kind() == BackendErrorKind::Unsupported
            || error.kind() == BackendErrorKind::Config
                && identify::negotiates_encryption(servers.protocol);
        if is_told || says_refused(&error) {
            return error;
        }
        match identify::mismatch(&servers).await {
            Some(found) => {
                let message = format!("{found} ({error})");
                BackendError::new(error.kind(), message).with_source(error)
            }
            None => error,
        }
    }

    #[cfg(not(feature = "servers"))]
    async fn identified(&self, error: BackendError) -> BackendError {
        error
    }
}

/// A refusal, if each of the hosts refuses connections at each of its addresses.
#[cfg(feature = "servers")]
async fn all_refuse(hosts: &[String]) -> Option<io::Error> {
    let mut asking = tokio::task::JoinSet::new();
    for host in hosts {
        let host = host.clone();
        asking.spawn(async move { refuses(&host).await });
    }
    let mut refusal = None;
    while let Some(asked) = asking.join_next().await {
        refusal = Some(asked.ok().flatten()?);
    }
    refusal
}

#[cfg(feature = "servers")]
async fn refuses(host: &str) -> Option<io::Error> {
    let mut refusal = None;
    for address in tokio::net::lookup_host(host).await.ok()? {
        match tokio::net::TcpStream::connect(address).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                refusal = Some(error);
            }
            _ => return None,
        }
    }
    refusal
}

/// Without a store that is reached over a network there is none to refuse.
#[cfg(not(feature = "servers"))]
async fn all_refuse(_: &[String]) -> Option<io::Error> {
    None
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.servers().fmt(f)
    }
}
