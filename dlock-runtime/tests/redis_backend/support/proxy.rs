use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// A TCP proxy in front of a server, whose faults a test chooses. It has a
/// runtime of its own, so that a test may block or pause its one.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    rules: Arc<watch::Sender<Rules>>,
    runtime: Option<Runtime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Pass,
    /// Kept back, and passed on when the flow passes again: even if whoever
    /// sent it has closed the connection meanwhile.
    Hold,
    /// Lost, and the connection with it: [`cut`](Proxy::cut) it before anything
    /// passes again.
    Swallow,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    requests: Flow,
    answers: Flow,
    /// The connections from the first to before the second number are silent.
    silent: (u64, u64),
    /// Connections with a lower number are closed.
    closed_below: u64,
    /// How many connections there have been.
    connections: u64,
    /// New ones are closed at once.
    refuses: bool,
}

impl Proxy {
    pub(crate) fn to(port: u16) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let rules = Arc::new(watch::Sender::new(Rules {
            requests: Flow::Pass,
            answers: Flow::Pass,
            silent: (0, 0),
            closed_below: 0,
            connections: 0,
            refuses: false,
        }));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener
            .set_nonblocking(true)
            .expect("a listener for tokio");
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener).expect("a listener for tokio")
        };
        let own = listener.local_addr().expect("its address").port();
        let server = SocketAddr::from(([127, 0, 0, 1], port));
        runtime.spawn(accept(listener, server, Arc::clone(&rules)));
        Self {
            port: own,
            rules,
            runtime: Some(runtime),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn requests(&self, flow: Flow) {
        self.rules.send_modify(|rules| rules.requests = flow);
    }

    pub(crate) fn answers(&self, flow: Flow) {
        self.rules.send_modify(|rules| rules.answers = flow);
    }

    /// The connections that are open now stay open, and nothing comes over them.
    pub(crate) fn silence(&self) {
        self.rules
            .send_modify(|rules| rules.silent = (0, rules.connections));
    }

    /// The same, but only the connection that was made last.
    pub(crate) fn silence_last(&self) {
        self.rules.send_modify(|rules| {
            rules.silent = (rules.connections.saturating_sub(1), rules.connections);
        });
    }

    /// What the silent connections have kept back goes on, even if whoever sent
    /// it has closed them meanwhile.
    pub(crate) fn resume(&self) {
        self.rules.send_modify(|rules| rules.silent = (0, 0));
    }

    /// Closes the connections that are open now.
    pub(crate) fn cut(&self) {
        self.rules
            .send_modify(|rules| rules.closed_below = rules.connections);
    }

    /// Whether new connections are closed at once.
    pub(crate) fn refuses(&self, refuses: bool) {
        self.rules.send_modify(|rules| rules.refuses = refuses);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, rules: Arc<watch::Sender<Rules>>) {
    while let Ok((client, _)) = listener.accept().await {
        if rules.borrow().refuses {
            continue;
        }
        let number = rules.borrow().connections;
        rules.send_modify(|rules| rules.connections += 1);
        let Ok(server) = TcpStream::connect(server).await else {
            continue;
        };
        let (client_in, client_out) = client.into_split();
        let (server_in, server_out) = server.into_split();
        let pump = |requests| Pump {
            number,
            requests,
            rules: rules.subscribe(),
        };
        tokio::spawn(pump(true).run(client_in, server_out));
        tokio::spawn(pump(false).run(server_in, client_out));
    }
}

/// One direction of one connection.
struct Pump {
    number: u64,
    requests: bool,
    rules: watch::Receiver<Rules>,
}

impl Pump {
    async fn run(mut self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
        let closed = closed(self.rules.clone(), self.number);
        tokio::pin!(closed);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read?,
                () = &mut closed => return Ok(()),
            };
            let flow = tokio::select! {
                flow = self.flow() => flow,
                () = &mut closed => return Ok(()),
            };
            if read == 0 {
                return to.shutdown().await;
            }
            if flow == Flow::Pass {
                to.write_all(&buffer[..read]).await?;
            }
        }
    }

    /// What to do with what was read, once it is not to be held.
    async fn flow(&mut self) -> Flow {
        let (number, requests) = (self.number, self.requests);
        let flow = move |rules: &Rules| {
            let flow = if requests {
                rules.requests
            } else {
                rules.answers
            };
            if (rules.silent.0..rules.silent.1).contains(&number) {
                Flow::Hold
            } else {
                flow
            }
        };
        match self.rules.wait_for(|rules| flow(rules) != Flow::Hold).await {
            Ok(rules) => flow(&rules),
            Err(_) => Flow::Swallow,
        }
    }
}

async fn closed(mut rules: watch::Receiver<Rules>, number: u64) {
    let _ = rules.wait_for(|rules| number < rules.closed_below).await;
}
