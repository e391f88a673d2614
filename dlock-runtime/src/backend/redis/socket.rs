//! Where a server listens, and the way there.

use std::fmt;
use std::io;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::settings::Settings;

/// Firewalls and load balancers forget a connection that is idle for minutes,
/// and the next command would then be met with silence.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The host is as the URL or a sentinel gave it, and two that are spelled
/// differently are two.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// What bytes go over, encrypted or not.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// Connects, encrypted if the settings say so.
pub(super) async fn dial(address: &Address, settings: &Settings) -> io::Result<Box<dyn Socket>> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    #[cfg(feature = "tls")]
    if let Some(tls) = &settings.tls {
        return Ok(Box::new(tls.encrypt(&address.host, stream).await?));
    }
    #[cfg(not(feature = "tls"))]
    let _ = settings;
    Ok(Box::new(stream))
}
