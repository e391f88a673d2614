//! Finds the hosts that refuse connections.

use std::io;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::apart::all;

/// A refusal comes within a round trip. A call waits no longer for the reason of its error.
const LOOK: Duration = Duration::from_millis(250);

/// A person who checks whether a host can be reached waits longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The hosts that refuse connections at all of their addresses, in the given order, and the error
/// of one of them.
pub(super) async fn refusals(hosts: &[String]) -> Option<(Vec<String>, io::Error)> {
    let asked = hosts.iter().map(async |host| {
        let refused = timeout(LOOK, refuses(host)).await;
        Some((host.clone(), refused.ok().flatten()?))
    });
    let refused = all(asked).await.into_iter().flatten();
    let (hosts, mut causes): (Vec<_>, Vec<_>) = refused.unzip();
    Some((hosts, causes.pop()?))
}

/// How long each host takes to accept a connection, or why it does not.
pub(super) async fn each(hosts: &[String]) -> Vec<(String, io::Result<Duration>)> {
    let asked = hosts.iter().map(async |host| {
        let begun = Instant::now();
        let connected = timeout(PATIENCE, connect(host)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        (host.clone(), connected.map(|_| begun.elapsed()))
    });
    all(asked).await
}

/// A connection to a host.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to a host and port, or to a unix socket by its path.
pub(super) fn connect(host: &str) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
    Box::pin(async move {
        #[cfg(unix)]
        if host.starts_with('/') {
            return Ok(Box::new(tokio::net::UnixStream::connect(host).await?) as _);
        }
        Ok(Box::new(TcpStream::connect(host).await?) as _)
    })
}

async fn refuses(host: &str) -> Option<io::Error> {
    if host.starts_with('/') {
        // Nothing listens on the socket, or nothing has created it yet.
        let is_refusal = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            )
        };
        return connect(host).await.err().filter(is_refusal);
    }
    let mut refusal = None;
    for address in lookup_host(host).await.ok()? {
        match TcpStream::connect(address).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                refusal = Some(error);
            }
            _ => return None,
        }
    }
    refusal
}
