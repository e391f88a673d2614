//! A room behind TCP that counts the visitors inside: what the permits of the multi-process tests
//! protect.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::visited::Visited;

/// The server, in the process of the test.
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
    /// The visitors inside, by their connections.
    inside: HashMap<SocketAddr, Visitor>,
    most: usize,
    entries: HashMap<String, usize>,
    /// Suspended workers, and until when their visitors inside still count.
    suspended: HashMap<String, Instant>,
}

#[derive(Debug)]
struct Visitor {
    worker: String,
    /// It was inside while its worker was suspended, perhaps for longer than its ttl.
    may_be_lost: bool,
}

impl Room {
    /// Opens an empty room.
    pub fn open() -> Self {
        let shared = Arc::<Shared>::default();
        let serves = Arc::clone(&shared);
        let server = Visited::by(move |stream| serves.serve(stream));
        Self { server, shared }
    }

    /// The address for the workers.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// This worker does nothing, until [`resumed`](Self::resumed). Its visitors inside count only
    /// until its leases end: then others may enter, although they never left.
    pub fn suspended(&self, worker: &str, leases_end: Instant) {
        let mut state = self.shared.lock();
        state.suspended.insert(worker.to_owned(), leases_end);
        // Counts again: visitors may have entered since the worker was stopped.
        state.count();
    }

    /// Ends [`suspended`](Self::suspended). Visitors inside may have lost their lease without
    /// knowing it yet.
    pub fn resumed(&self, worker: &str) {
        let mut state = self.shared.lock();
        state.suspended.remove(worker);
        for visitor in state.inside.values_mut() {
            visitor.may_be_lost |= visitor.worker == worker;
        }
    }

    /// The number of visitors inside that count.
    pub fn inside(&self) -> usize {
        self.shared.lock().inside()
    }

    /// The highest number of visitors inside so far.
    pub fn most(&self) -> usize {
        self.shared.lock().most
    }

    /// How many times this worker has entered.
    pub fn entries_of(&self, worker: &str) -> usize {
        let state = self.shared.lock();
        state.entries.get(worker).copied().unwrap_or_default()
    }

    /// How many times the other workers have entered.
    pub fn entries_of_others(&self, worker: &str) -> usize {
        let state = self.shared.lock();
        let others = state.entries.iter().filter(|(name, _)| *name != worker);
        others.map(|(_, entries)| entries).sum()
    }
}

impl State {
    fn inside(&self) -> usize {
        let now = Instant::now();
        let counts = |visitor: &&Visitor| {
            let leases_end = self.suspended.get(&visitor.worker);
            !visitor.may_be_lost && leases_end.is_none_or(|&leases_end| now < leases_end)
        };
        self.inside.values().filter(counts).count()
    }

    fn count(&mut self) {
        self.most = self.most.max(self.inside());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the room's state")
    }

    /// Serves one visitor: a line with its name, and a line when it leaves, each of which is
    /// answered. A visitor that is killed leaves when its connection ends.
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
        let may_be_lost = false;
        let comes_in = Visitor {
            worker,
            may_be_lost,
        };
        state.inside.insert(visitor, comes_in);
        state.count();
    }
}

/// Is inside the room at this address while `body` runs. If it is dropped, it leaves without a
/// message.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::wait::{HANG, until, within};

    /// Others enter beside a paused worker, one after the other, and leave again.
    #[tokio::test]
    async fn a_worker_that_is_paused_counts_until_its_leases_end() {
        let room = Room::open();
        let address = room.address();
        let beside = async || {
            within(HANG, inside(address, "other", async {}))
                .await
                .expect("the room");
        };
        let paused =
            tokio::spawn(async move { inside(address, "paused", std::future::pending()).await });
        until(
            "it is inside",
            async || room.inside(),
            |&inside| inside == 1,
        )
        .await;
        room.suspended("paused", Instant::now());
        beside().await;
        assert_eq!(room.most(), 1, "its leases have ended");
        room.suspended("paused", Instant::now() + 20 * HANG);
        beside().await;
        assert_eq!(room.most(), 2, "they have not");
        room.resumed("paused");
        assert_eq!(room.inside(), 0, "they may have");
        paused.abort();
    }
}
