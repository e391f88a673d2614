//! Free ports on loopback.

use std::net::{Ipv4Addr, TcpListener};

/// A port that nobody listened on a moment ago. Somebody else may take it
/// before our server does, so starting a server tries more than once.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port on loopback")
        .port()
}
