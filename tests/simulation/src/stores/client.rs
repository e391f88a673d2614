//! What the stores share: the way from a process to its server.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dlock::backend::BackendError;
use dlock_runtime::store::{Applied, Cause, Context, Deadline, Failure, Next, Time};

use crate::network::{Connection, Server, Service};
use crate::world::{ExecutorId, Process};

/// Who asks whom.
pub(crate) struct Config<S: Service> {
    pub(crate) server: Arc<Server<S>>,
    pub(crate) process: Arc<Process>,
}

impl<S: Service> Clone for Config<S> {
    fn clone(&self) -> Self {
        Self {
            server: Arc::clone(&self.server),
            process: Arc::clone(&self.process),
        }
    }
}

impl<S: Service> fmt::Debug for Config<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.server, self.process)
    }
}

/// The connections of a process: one for each of its executors, so that what is
/// sent from one of them arrives in order, or a single one.
pub(super) struct Client<S: Service> {
    pub(super) config: Config<S>,
    pub(super) time: Time,
    /// How long one answer may take.
    pub(super) patience: Duration,
    single: bool,
    open: Mutex<BTreeMap<Option<ExecutorId>, Arc<Connection<S>>>>,
}

impl<S: Service> Client<S> {
    pub(super) fn new(config: Config<S>, context: &Context, single: bool) -> Self {
        Self {
            config,
            time: context.time.clone(),
            patience: context.patience(),
            single,
            open: Mutex::default(),
        }
    }

    /// Asks, over a connection that is made if there is none. What is on its way is
    /// in `flight`, until it is answered or given up.
    pub(super) async fn ask(
        &self,
        command: S::Command,
        deadline: Deadline,
        flight: &mut Option<Arc<Connection<S>>>,
    ) -> Result<(S::Answer, Instant), Failure> {
        let connection = self.connection(deadline).await?;
        let sent_at = self.time.now();
        *flight = Some(Arc::clone(&connection));
        let limit = self.time.after(self.patience).min(deadline);
        let answer = self.time.bound(limit, connection.send(command)).await;
        *flight = None;
        match answer {
            Ok(Ok(answer)) => Ok((answer, sent_at)),
            Ok(Err(_)) => Err(unknown(sent_at)),
            Err(_) => {
                // The next question is asked over another one.
                connection.close();
                Err(unknown(sent_at))
            }
        }
    }

    /// Whether there is one for the executor that this is called on.
    pub(super) fn is_connected(&self) -> bool {
        let here = self.config.process.world().running();
        let open = self.open();
        open.get(&here).is_some_and(|known| known.is_open())
    }

    pub(super) async fn connection(
        &self,
        deadline: Deadline,
    ) -> Result<Arc<Connection<S>>, Failure> {
        let world = self.config.process.world();
        let here = world.running().filter(|_| !self.single);
        let known = self.open().get(&here).cloned();
        if let Some(known) = known.filter(|known| known.is_open()) {
            return Ok(known);
        }
        let Config { server, process } = &self.config;
        let trip = Connection::handshake(server, process.id);
        let limit = self.time.after(self.patience).min(deadline);
        let connected = self.time.bound(limit, process.sleep(trip)).await;
        connected.map_err(|_| not_reached("the connection could not be made in time"))?;
        let mut open = self.open();
        // Another may have been quicker.
        if let Some(known) = open.get(&here).filter(|known| known.is_open()) {
            return Ok(Arc::clone(known));
        }
        let made = Connection::open(server, process.id)
            .ok_or_else(|| not_reached("the connection was refused"))?;
        open.insert(here, Arc::clone(&made));
        Ok(made)
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<Option<ExecutorId>, Arc<Connection<S>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer will not come, and the command may be run yet.
pub(super) fn unknown(sent_at: Instant) -> Failure {
    Failure::silent(Applied::Unknown { sent_at })
}

pub(super) fn not_reached(why: &str) -> Failure {
    let cause = Cause::NotReached(BackendError::unavailable(why));
    Failure::new(cause, Next::Pause, Applied::No)
}

pub(super) fn silent(for_long: Duration) -> BackendError {
    BackendError::unavailable(format!("it has not answered within {for_long:?}"))
}
