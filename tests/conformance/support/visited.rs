//! A server in the process of the test, with a thread for each client.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Accepts clients until it is dropped. The thread of a client ends when the client does.
#[derive(Debug)]
pub struct Visited {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Visited {
    /// Serves each client by this function.
    pub fn by(serve: impl Fn(&TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("the port");
        let (closed, serve) = (Arc::<AtomicBool>::default(), Arc::new(serve));
        let is_closed = Arc::clone(&closed);
        let acceptor = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if is_closed.load(Ordering::Acquire) {
                    return;
                }
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(&stream));
            }
        });
        Self {
            address,
            closed,
            acceptor: Some(acceptor),
        }
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Visited {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}
