//! Free ports on loopback.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The ports of this process, so that no other test program takes the port of a server that is
/// down.
static OURS: LazyLock<Option<Block>> = LazyLock::new(Block::of_this_process);

const BLOCKS: u16 = 20;
const PORTS: u16 = 1_000;

/// A port on which nothing listened a moment ago. Another program may take it before our server
/// does, so starting a server is tried several times.
pub fn free_port() -> u16 {
    let free = OURS.as_ref().and_then(Block::free_port);
    free.or_else(|| listening(0))
        .expect("a free port on loopback")
}

/// The hosts of a URL for servers on these ports.
pub fn hosts(ports: &[u16]) -> String {
    let hosts = ports.iter().map(|port| format!("127.0.0.1:{port}"));
    hosts.collect::<Vec<_>>().join(",")
}

/// Ports that the system never gives to outgoing connections. An outgoing connection would keep a
/// server from coming back to its port. A client that tries to connect to that port again and
/// again could even be given the port itself, and then talk to itself.
struct Block {
    ports: Range<u16>,
    taken: AtomicUsize,
    /// Reserves the block: its first port, for datagrams.
    _ours: UdpSocket,
}

impl Block {
    fn of_this_process() -> Option<Self> {
        let end = first_outgoing()?;
        let start = end.checked_sub(BLOCKS * PORTS)?;
        // Ports below 1024 are reserved for the superuser.
        let mut blocks = (start..end).step_by(PORTS.into()).filter(|p| *p >= 1024);
        blocks.find_map(|first| {
            Some(Self {
                ports: first..first + PORTS,
                taken: AtomicUsize::new(0),
                _ours: UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).ok()?,
            })
        })
    }

    /// Takes the ports in turn, so that a port that was given back is not soon used again.
    fn free_port(&self) -> Option<u16> {
        let len = self.ports.len();
        (0..len).find_map(|_| {
            let next = self.taken.fetch_add(1, Ordering::Relaxed) % len;
            listening(self.ports.clone().nth(next)?)
        })
    }
}

/// The first port of outgoing connections, see ip(7).
fn first_outgoing() -> Option<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    range.split_whitespace().next()?.parse().ok()
}

fn listening(port: u16) -> Option<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
    Some(listener.local_addr().ok()?.port())
}
