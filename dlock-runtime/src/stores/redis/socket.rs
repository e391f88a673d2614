//! Connecting to a server and logging in.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use futures_util::future::{BoxFuture, select_ok};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};

use super::endpoint::Endpoint;
use super::settings::Settings;
use crate::apart::apart;
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::stores::address::Address;

/// Firewalls and load balancers drop a connection that is idle for minutes, and the next command
/// would then get no answer.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// How many commands may wait until the client's connection takes them. The client's default of
/// 50 is less than the number of tasks in a busy service, each of which would be put to sleep and
/// woken once more.
const PIPELINE_BUFFER: usize = 1024;

/// A socket, encrypted or not.
trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// Reads and writes for a connection. When it ends, the connection has ended; dropping it closes
/// the socket.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Connects and logs in. Published messages are passed to `hear`.
pub(super) async fn open(
    address: &Address,
    settings: &Settings,
    endpoint: &Endpoint,
    hear: impl Fn(&PushInfo) + Send + Sync + 'static,
) -> Result<(MultiplexedConnection, Driver), BackendError> {
    let socket = dial(address, settings)
        .await
        .map_err(|error| endpoint.no_connection(error))?;
    let config = AsyncConnectionConfig::new()
        .set_pipeline_buffer_size(PIPELINE_BUFFER)
        // Each call has a deadline of its own.
        .set_response_timeout(None)
        .set_push_sender(move |push: PushInfo| {
            hear(&push);
            Ok::<_, Infallible>(())
        });
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&settings.login, socket, config)
            .await
            .map_err(|error| endpoint.unreachable(error))?;
    Ok((connection, Box::pin(driver)))
}

/// Asks these questions over a new connection, which is then closed.
pub(super) async fn ask_once(
    questions: &Pipeline,
    address: &Address,
    settings: &Settings,
    endpoint: &Endpoint,
    time: &Time,
    deadline: Deadline,
) -> Result<Vec<Value>, BackendError> {
    let started = time.now();
    let conversation = async {
        let (mut connection, mut driver) = open(address, settings, endpoint, |_| {}).await?;
        let answers = tokio::select! {
            biased;
            answers = send(&mut connection, questions) => answers,
            () = &mut driver => Err(closed()),
        };
        answers.map_err(|error| endpoint.unreachable(error))
    };
    match time.bound(deadline, conversation).await {
        Ok(answers) => answers,
        Err(_) => Err(endpoint.silent(time.now() - started)),
    }
}

/// Sends these commands over a client. In a box, so that what the client does with them is in the
/// binary once.
pub(super) fn send<'a>(
    client: &'a mut MultiplexedConnection,
    commands: &'a Pipeline,
) -> BoxFuture<'a, RedisResult<Vec<Value>>> {
    apart(client.send_packed_commands(commands, 0, commands.len()))
}

/// Sends one command over a client.
pub(super) fn send_one<'a>(
    client: &'a mut MultiplexedConnection,
    command: &'a Cmd,
) -> BoxFuture<'a, RedisResult<Value>> {
    apart(client.send_packed_command(command))
}

/// The error of a connection that has ended.
pub(super) fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::UnexpectedEof).into()
}

/// Connects, encrypted if the settings say so.
async fn dial(address: &Address, settings: &Settings) -> io::Result<Box<dyn Socket>> {
    let (host, port) = match address {
        Address::Host { host, port } => (host.as_str(), port.get()),
        Address::Socket(path) => return connect_to_file(path).await,
    };
    let found = lookup_host((host, port)).await?;
    let stream = connect_to_one(found).await?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    #[cfg(feature = "tls")]
    if let Some(tls) = &settings.tls {
        return Ok(Box::new(tls.encrypt(host, stream).await?));
    }
    #[cfg(not(feature = "tls"))]
    let _ = settings;
    Ok(Box::new(stream))
}

#[cfg(unix)]
async fn connect_to_file(path: &str) -> io::Result<Box<dyn Socket>> {
    Ok(Box::new(tokio::net::UnixStream::connect(path).await?))
}

#[cfg(not(unix))]
async fn connect_to_file(_: &str) -> io::Result<Box<dyn Socket>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Connects to the address that answers first: an address that swallows packets must not keep the
/// others from being tried.
async fn connect_to_one(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let attempts: Vec<_> = addresses
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if attempts.is_empty() {
        let reason = "the host has no address";
        return Err(io::Error::new(io::ErrorKind::NotFound, reason));
    }
    Ok(select_ok(attempts).await?.0)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use redis::io::tcp::socket2::{Domain, Socket, Type};
    use tokio::time::timeout;

    use super::*;

    const A_MOMENT: Duration = Duration::from_millis(250);

    /// A listener whose queue is full: the kernel drops what is sent to it.
    async fn black_hole() -> (Socket, Vec<TcpStream>) {
        let socket = taken_port();
        socket.listen(0).expect("a listener");
        let address = address_of(&socket);
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(A_MOMENT, TcpStream::connect(address)).await {
            queued.push(stream.expect("a place in the queue"));
        }
        (socket, queued)
    }

    /// Nobody listens there.
    fn taken_port() -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(&any.into()).expect("a free port");
        socket
    }

    fn address_of(socket: &Socket) -> SocketAddr {
        let address = socket.local_addr().expect("its address");
        address.as_socket().expect("of the internet")
    }

    #[tokio::test]
    async fn an_address_that_swallows_everything_does_not_hide_the_next() {
        let (hole, _queued) = black_hole().await;
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let good = server.local_addr().expect("its address");
        let stream = timeout(
            Duration::from_secs(20),
            connect_to_one([address_of(&hole), good].into_iter()),
        );
        let stream = stream.await.expect("no hang").expect("a connection");
        assert_eq!(stream.peer_addr().expect("its address"), good);
    }

    #[tokio::test]
    async fn an_address_where_nobody_listens_is_passed_over() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let good = server.local_addr().expect("its address");
        // Taken, so that nobody else comes to listen there.
        let taken = taken_port();
        let nobody = address_of(&taken);
        let stream = connect_to_one([nobody, good].into_iter()).await;
        let stream = stream.expect("a connection");
        assert_eq!(stream.peer_addr().expect("its address"), good);
        let error = connect_to_one([nobody].into_iter())
            .await
            .expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = connect_to_one([].into_iter())
            .await
            .expect_err("no address");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
