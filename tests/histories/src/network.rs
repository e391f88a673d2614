//! What the proxies of a history do in front of a server that has too much to do.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, within};

#[tokio::test]
async fn a_client_that_has_gone_leaves_the_queue() {
    let socket = TcpSocket::new_v4().expect("a socket");
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    socket.bind(any).expect("a free port");
    let server = socket.listen(1).expect("it listens, and accepts nobody");
    let address = server.local_addr().expect("its address");
    let mut queue = Vec::new();
    while let Ok(waits) = timeout(Duration::from_secs(1), TcpStream::connect(address)).await {
        queue.push(waits.expect("there is room"));
    }
    let proxy = Proxy::to(address.port());
    let client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await;
    let mut client = client.expect("the proxy");
    client.write_all(b"hello").await.expect("the proxy");
    client.shutdown().await.expect("the proxy");
    // The system itself would give the connection up after two minutes.
    let read = within(HANG / 3, client.read(&mut [0])).await;
    assert_eq!(read.expect("the end"), 0);
}
