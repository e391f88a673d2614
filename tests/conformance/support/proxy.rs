//! A TCP proxy that can disturb its connections.

use std::io::Cursor;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::port::free_port;
use super::runtimes::current_thread;

/// The present faults.
#[derive(Clone, Debug, Default)]
struct Faults {
    /// Rises with each cut: earlier connections are closed.
    cuts: u64,
    /// Rises with each freeze: earlier connections carry nothing.
    freezes: u64,
    /// Connections made before this freeze carry data again.
    thawed: u64,
    refuse: bool,
    shut: bool,
    stall: bool,
    stall_replies: bool,
    swallow: bool,
    delay: Option<Duration>,
    held_back: Option<Arc<HeldBack>>,
    closed: bool,
}

impl Faults {
    /// Whether a connection is frozen that was made after this many freezes.
    fn is_frozen(&self, freezes: u64) -> bool {
        self.freezes > freezes && self.thawed <= freezes
    }
}

/// A request that is held back.
#[derive(Debug)]
struct HeldBack {
    contains: Vec<u8>,
    found: AtomicBool,
}

impl HeldBack {
    /// Whether this is the request. Only the first match is.
    fn is(&self, request: &[u8]) -> bool {
        let mut parts = request.windows(self.contains.len());
        parts.any(|part| part == self.contains) && !self.found.swap(true, Ordering::SeqCst)
    }
}

/// Forwards its own port to a server, on its own thread, so that a test that blocks its runtime
/// does not block the network.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    accepted: Arc<AtomicUsize>,
    faults: watch::Sender<Faults>,
    /// Whether the proxy listens.
    listening: watch::Receiver<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy for the server on this port of loopback.
    pub fn to(target: u16) -> Self {
        let (faults, state) = watch::channel(Faults::default());
        let (listens_on, port) = mpsc::channel();
        let (listens, listening) = watch::channel(true);
        let accepted = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&accepted);
        let thread = std::thread::spawn(move || {
            current_thread().block_on(async move {
                let listener = listener().await;
                listens_on
                    .send(listener.local_addr().expect("the port").port())
                    .expect("the thread that makes the proxy");
                accept_all(listener, target, state, &listens, &count).await;
            });
        });
        let port = port.recv().expect("the proxy listens");
        Self {
            port,
            accepted,
            faults,
            listening,
            thread: Some(thread),
        }
    }

    fn set(&self, change: impl FnOnce(&mut Faults)) {
        self.faults.send_modify(change);
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections were made so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Whether it has an open connection.
    pub(crate) fn is_used(&self) -> bool {
        // One receiver waits for new connections, and one is for their copies.
        self.faults.receiver_count() > 2
    }

    /// Holds back the next request that contains this, and everything after it on the same
    /// connection. With `None` it is delivered, even if its client has gone.
    pub fn hold_back(&self, contains: Option<&str>) {
        let held_back = contains.map(|contains| {
            Arc::new(HeldBack {
                contains: contains.into(),
                found: AtomicBool::new(false),
            })
        });
        self.set(|faults| faults.held_back = held_back);
    }

    /// Whether such a request has come and is held back.
    pub fn holds_back(&self) -> bool {
        let faults = self.faults.borrow();
        let held_back = faults.held_back.as_ref();
        held_back.is_some_and(|held_back| held_back.found.load(Ordering::SeqCst))
    }

    /// Closes every present connection.
    pub fn cut(&self) {
        self.set(|faults| faults.cuts += 1);
    }

    /// Closes every connection, and each new one immediately, until this is called with `false`.
    pub fn refuse(&self, refuse: bool) {
        self.set(|faults| {
            faults.refuse = refuse;
            faults.cuts += u64::from(refuse);
        });
    }

    /// Closes each new connection immediately, until this is called with `false`. Present
    /// connections stay open.
    pub fn refuse_new(&self, refuse: bool) {
        self.set(|faults| faults.refuse = refuse);
    }

    /// Closes every connection and stops listening, until this is called with `false`: the system
    /// refuses new ones.
    pub fn shut(&self, shut: bool) {
        self.set(|faults| {
            faults.shut = shut;
            faults.cuts += u64::from(shut);
        });
        let mut listening = self.listening.clone();
        while *listening.borrow_and_update() == shut {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Leaves every connection open but carries nothing: for the client, the server is silent.
    /// Data that was sent meanwhile is delivered afterwards.
    pub fn stall(&self, stall: bool) {
        self.set(|faults| faults.stall = stall);
    }

    /// Like [`stall`](Self::stall), for replies only.
    pub fn stall_replies(&self, stall: bool) {
        self.set(|faults| faults.stall_replies = stall);
    }

    /// The present connections carry nothing any more; new ones do. As after a firewall has
    /// dropped the connections.
    pub fn freeze(&self) {
        self.set(|faults| faults.freezes += 1);
    }

    /// Delivers the data of the frozen connections after all.
    pub fn thaw(&self) {
        self.set(|faults| faults.thawed = faults.freezes);
    }

    /// Carries requests and drops the replies. Ending this closes every connection, since a
    /// stream cannot continue after a gap.
    pub fn swallow_replies(&self, swallow: bool) {
        self.set(|faults| {
            faults.swallow = swallow;
            faults.cuts += u64::from(!swallow);
        });
    }

    /// Delays each piece of data in each direction by this much.
    pub fn delay(&self, delay: Option<Duration>) {
        self.set(|faults| faults.delay = delay);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(|faults| faults.closed = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Listens on a port that it can use again later.
async fn listener() -> TcpListener {
    for _ in 0..5 {
        // Another program may take a free port first.
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).await {
            return listener;
        }
    }
    panic!("no proxy can listen on any of five free ports");
}

async fn accept_all(
    listener: TcpListener,
    target: u16,
    mut state: watch::Receiver<Faults>,
    listens: &watch::Sender<bool>,
    accepted: &AtomicUsize,
) {
    let address = listener.local_addr().expect("its address");
    let for_connections = state.clone();
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        if let Some(listener) = &listener {
            let accept = async {
                loop {
                    tokio::select! {
                        accepting = listener.accept() => match accepting {
                            Ok((client, _)) => {
                                accepted.fetch_add(1, Ordering::SeqCst);
                                connections.spawn(carry(client, target, for_connections.clone()));
                            }
                            // One lost connection, as on any network.
                            Err(_) => sleep(Duration::from_millis(10)).await,
                        },
                        Some(_) = connections.join_next() => {}
                    }
                }
            };
            tokio::select! {
                () = accept => {}
                _ = state.wait_for(|faults| faults.closed || faults.shut) => {}
            }
        }
        if state.borrow().closed {
            return;
        }
        listener = None;
        // Each connection ends because of the cut. Data that one has read before may still be
        // answered.
        while connections.join_next().await.is_some() {}
        let _ = listens.send(false);
        if state
            .wait_for(|faults| faults.closed || !faults.shut)
            .await
            .is_err()
        {
            return;
        }
        // Tried until the closed listener has given the port free.
        while listener.is_none() {
            listener = TcpListener::bind(address).await.ok();
        }
        let _ = listens.send(true);
    }
}

/// One connection, until either side or a cut ends it.
async fn carry(mut client: TcpStream, target: u16, mut state: watch::Receiver<Faults>) {
    let (born, freezes) = {
        let now = state.borrow();
        (now.cuts, now.freezes)
    };
    if state.borrow().refuse || state.borrow().shut {
        return;
    }
    let mut connecting = pin!(TcpStream::connect((Ipv4Addr::LOCALHOST, target)));
    let mut early = Vec::new();
    let server = loop {
        tokio::select! {
            connected = &mut connecting => match connected {
                Ok(server) => break server,
                Err(_) => return,
            },
            // A client that has gone does not stay in the queue of an overloaded server, which
            // would otherwise meet only those who have gone.
            read = client.read_buf(&mut early) => if !matches!(read, Ok(1..)) {
                return;
            },
        }
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let from_client = Cursor::new(early).chain(from_client);
    tokio::select! {
        () = pump(from_client, to_server, state.clone(), freezes, false) => {}
        () = pump(from_server, to_client, state.clone(), freezes, true) => {}
        _ = state.wait_for(|faults| faults.cuts != born) => {}
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<Faults>,
    freezes: u64,
    replies: bool,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        let Ok(faults) = state
            .wait_for(|faults| {
                let stalls = faults.stall || replies && faults.stall_replies;
                !stalls && !faults.is_frozen(freezes)
            })
            .await
            .map(|faults| faults.clone())
        else {
            return;
        };
        if let Some(delay) = faults.delay {
            sleep(delay).await;
        }
        if let Some(held_back) = &faults.held_back
            && held_back.is(&buffer[..length])
        {
            let arrives = |now: &Faults| now.held_back.is_none();
            if state.wait_for(arrives).await.is_err() {
                return;
            }
        }
        let drops = replies && faults.swallow;
        if !drops && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
