//! A way to a server that reads what is asked and answered over it.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// A number of the protocol.
pub(crate) fn number(message: &[u8], at: usize) -> Option<i32> {
    let bytes = message.get(at..)?.first_chunk()?;
    Some(i32::from_be_bytes(*bytes))
}

/// What a request asks for (`ZooDefs.OpCode`). Its number is in front of that.
pub(crate) fn operation(request: &[u8]) -> Option<i32> {
    number(request, 8)
}

/// What becomes of messages, each with its length in front.
pub(crate) trait Reader: Send + Sync + 'static {
    /// Somebody connects: the requests that follow come over this connection.
    fn connected(&self) {}

    /// What goes to the server in place of this request.
    fn asked(&self, request: Vec<u8>) -> Vec<u8>;

    /// What comes from it in place of this answer.
    fn answered(&self, answer: Vec<u8>) -> Vec<u8> {
        answer
    }
}

/// Where all goes by this reader on its way to the server.
pub(crate) async fn read_by(reader: Arc<impl Reader>, server: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await;
            let server = server.expect("a connection");
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let reader = Arc::clone(&reader);
            reader.connected();
            tokio::spawn(async move {
                tokio::select! {
                    _ = carry(from_client, to_server, |request| reader.asked(request)) => {}
                    _ = carry(from_server, to_client, |answer| reader.answered(answer)) => {}
                }
            });
        }
    });
    port
}

/// But for the first message of each, which opens the session.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    read: impl Fn(Vec<u8>) -> Vec<u8>,
) -> io::Result<()> {
    to.write_all(&message(&mut from).await?).await?;
    loop {
        let message = message(&mut from).await?;
        to.write_all(&read(message)).await?;
    }
}

async fn message(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut message = length.to_be_bytes().to_vec();
    let mut rest = from.take(length.into());
    rest.read_to_end(&mut message).await?;
    Ok(message)
}

/// How often each operation was asked for.
pub(crate) type Asked = BTreeMap<i32, u64>;

#[derive(Default)]
pub(crate) struct Counter(Mutex<Asked>);

impl Counter {
    /// What was asked since this was called last.
    pub(crate) fn since_last(&self) -> Asked {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

impl Reader for Counter {
    fn asked(&self, request: Vec<u8>) -> Vec<u8> {
        if let Some(operation) = operation(&request) {
            let mut asked = self.0.lock().expect("no panic");
            *asked.entry(operation).or_default() += 1;
        }
        request
    }
}
