//! One connection to the server, from the socket to the first usable command.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tokio::net::TcpStream;

use super::clock::{Clock, Deadline};
use super::commands;
use super::connection::{Connection, Driver, Opened, closed};
use super::errors::{Place, Remedy, remedy};
use super::names::Process;
use super::settings::Settings;
use super::waiters::Waiters;
use crate::backend::BackendError;

/// So many commands of other tasks may wait for the connection to take them.
/// The client's 50 are fewer than a busy service has tasks, each of which would
/// be put to sleep and woken once more.
const PIPELINE_BUFFER: usize = 1024;

/// Firewalls and load balancers forget a connection that is idle for minutes,
/// and the next command would then be met with silence.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Makes connections.
pub(super) struct Connector {
    pub(super) settings: Settings,
    pub(super) place: Place,
    pub(super) clock: Clock,
}

/// What the messages that come over a connection are for.
#[derive(Clone)]
pub(super) struct Listener {
    pub(super) process: Process,
    pub(super) waiters: Arc<Waiters>,
}

impl Connector {
    /// Connects, logs in, and lifts the token counter. The whole takes no
    /// longer than until the deadline.
    pub(super) async fn open(
        &self,
        listener: Option<&Listener>,
        deadline: Deadline,
    ) -> Result<Opened, BackendError> {
        let start = std::time::Instant::now();
        match self
            .clock
            .bound(deadline, self.open_unbounded(listener))
            .await
        {
            Ok(opened) => opened,
            Err(_) => Err(self.place.silent(start.elapsed())),
        }
    }

    async fn open_unbounded(&self, listener: Option<&Listener>) -> Result<Opened, BackendError> {
        let stream = self
            .connect()
            .await
            .map_err(|error| self.place.no_connection(error))?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.settings.tls {
            let stream = tls
                .encrypt(&self.settings.host, stream)
                .await
                .map_err(|error| self.place.no_connection(error))?;
            return self.log_in(stream, listener).await;
        }
        self.log_in(stream, listener).await
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let Settings { host, port, .. } = &self.settings;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        Ok(stream)
    }

    async fn log_in(
        &self,
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
        listener: Option<&Listener>,
    ) -> Result<Opened, BackendError> {
        let unreachable = |error| self.place.unreachable(error);
        let mut config = AsyncConnectionConfig::new()
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
            // Each call has a deadline of its own.
            .set_response_timeout(None);
        if let Some(listener) = listener {
            let waiters = Arc::clone(&listener.waiters);
            config = config.set_push_sender(move |push: PushInfo| {
                hear(&waiters, &push);
                Ok::<_, std::convert::Infallible>(())
            });
        }
        let (mut multiplexed, driver) =
            MultiplexedConnection::new_with_config(&self.settings.login, stream, config)
                .await
                .map_err(unreachable)?;
        let mut driver: Driver = Box::pin(driver);
        let set_up = async {
            if let Some(listener) = listener {
                multiplexed
                    .subscribe(listener.process.wake_channel())
                    .await
                    .map_err(unreachable)?;
            }
            let floor = multiplexed
                .send_packed_command(&commands::lift_tokens(0))
                .await
                .map_err(unreachable)?;
            match floor {
                Value::Int(floor) => Ok(floor.unsigned_abs()),
                Value::ServerError(error)
                    if matches!(remedy(&error), Remedy::Foreign | Remedy::ForeignCounter) =>
                {
                    Err(self.place.foreign_counter())
                }
                Value::ServerError(error) => Err(self.place.refused(&error)),
                _ => Err(self.place.nonsense()),
            }
        };
        let token_floor = tokio::select! {
            biased;
            floor = set_up => floor?,
            () = &mut driver => return Err(unreachable(closed())),
        };
        let patience = self.settings.patience();
        let connection = Connection::new(multiplexed, token_floor, patience, self.clock.clone());
        Ok(Opened { connection, driver })
    }
}

/// A message to a process: one of its waiters was granted a lock.
fn hear(waiters: &Waiters, push: &PushInfo) {
    if let (PushKind::Message, [_channel, Value::BulkString(message)]) =
        (&push.kind, &push.data[..])
        && let Ok(message) = std::str::from_utf8(message)
        && let Some((owner, key)) = super::names::parse_wake(message)
    {
        waiters.granted(key, owner);
    }
}
