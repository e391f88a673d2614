//! A room behind TCP that counts who is inside: what the permits of the multi-process
//! tests protect.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::visited::Visited;

/// The server, in the process of the test that checks.
#[derive(Debug)]
pub struct Room {
    server: Visited,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Who is inside, by its connection, and whether it counts.
    inside: HashMap<SocketAddr, Visitor>,
    most: usize,
    entries: HashMap<String, usize>,
    suspended: HashSet<String>,
}

#[derive(Debug)]
struct Visitor {
    worker: String,
    counts: bool,
}

impl Room {
    /// An empty one.
    pub fn open() -> Self {
        let shared = Arc::<Shared>::default();
        let serves = Arc::clone(&shared);
        let server = Visited::by(move |stream| serves.serve(stream));
        Self { server, shared }
    }

    /// Where the workers find it.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// From now on, until [`resumed`](Self::resumed), this worker does nothing. Whom it
    /// has inside does not count any more: others may come in, although it never left.
    pub fn suspended(&self, worker: &str) {
        let mut state = self.shared.lock();
        state.suspended.insert(worker.to_owned());
        for visitor in state.inside.values_mut() {
            visitor.counts &= visitor.worker != worker;
        }
    }

    /// Ends [`suspended`](Self::suspended).
    pub fn resumed(&self, worker: &str) {
        self.shared.lock().suspended.remove(worker);
    }

    /// How many are inside, of those who count.
    pub fn inside(&self) -> usize {
        self.shared.lock().inside()
    }

    /// The most that ever were.
    pub fn most(&self) -> usize {
        self.shared.lock().most
    }

    /// How many times this worker has come in.
    pub fn entries_of(&self, worker: &str) -> usize {
        let state = self.shared.lock();
        state.entries.get(worker).copied().unwrap_or_default()
    }

    /// How many times others have.
    pub fn entries_of_others(&self, worker: &str) -> usize {
        let state = self.shared.lock();
        let others = state.entries.iter().filter(|(name, _)| *name != worker);
        others.map(|(_, entries)| entries).sum()
    }
}

impl State {
    fn inside(&self) -> usize {
        let inside = self.inside.values();
        inside.filter(|visitor| visitor.counts).count()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the room's state")
    }

    /// One visitor: a line with its name, and one when it leaves, each of which is
    /// answered. One that is killed leaves as its connection ends.
    fn serve(&self, stream: &TcpStream) {
        let Ok(visitor) = stream.peer_addr() else {
            return;
        };
        let mut writer = stream;
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        if let Some(worker) = lines.next() {
            self.comes_in(visitor, worker);
            let _ = writer.write_all(b".");
            lines.next();
        }
        self.lock().inside.remove(&visitor);
        let _ = writer.write_all(b".");
    }

    fn comes_in(&self, visitor: SocketAddr, worker: String) {
        let mut state = self.lock();
        *state.entries.entry(worker.clone()).or_default() += 1;
        let counts = !state.suspended.contains(&worker);
        state.inside.insert(visitor, Visitor { worker, counts });
        state.most = state.most.max(state.inside());
    }
}

/// Is inside the room at this address while `body` runs. Dropped, it leaves without a
/// word.
///
/// # Errors
///
/// The room is closed.
pub async fn inside(
    room: SocketAddr,
    worker: &str,
    body: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let mut stream = tokio::net::TcpStream::connect(room).await?;
    stream.write_all(format!("{worker}\n").as_bytes()).await?;
    stream.read_u8().await?;
    body.await;
    stream.write_all(b"\n").await?;
    stream.read_u8().await?;
    Ok(())
}
