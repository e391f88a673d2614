//! Who refuses connections.

use std::io;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A refusal comes within a round trip. A call does not wait longer to be told.
const LOOK: Duration = Duration::from_millis(250);

/// The hosts that refuse connections at each of their addresses, in their order,
/// and what one of them said.
pub(super) async fn refusals(hosts: &[String]) -> Option<(Vec<String>, io::Error)> {
    let mut asking = JoinSet::new();
    for (number, host) in hosts.iter().enumerate() {
        let host = host.clone();
        asking.spawn(async move {
            let refused = timeout(LOOK, refuses(&host)).await;
            Some((number, host, refused.ok().flatten()?))
        });
    }
    let mut refused: Vec<_> = asking.join_all().await.into_iter().flatten().collect();
    refused.sort_by_key(|(number, ..)| *number);
    let mut cause = None;
    let hosts = refused.into_iter().map(|(_, host, error)| {
        cause = Some(error);
        host
    });
    let hosts = hosts.collect();
    Some((hosts, cause?))
}

async fn refuses(host: &str) -> Option<io::Error> {
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
