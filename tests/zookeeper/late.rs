//! A creation that comes when its session was already told that there is no such node.
//!
//! A server that is cut off keeps it, and sends it on when the session has been
//! elsewhere and is back. Whether the leader takes it then is a race of two of its
//! threads. Here it is always taken.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use dlock::LockManager;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::harness::{Scene, config, connect};
use crate::support::locks::{self, had, served};
use crate::support::wait::{HANG, until};
use crate::support::zookeeper::make;

// `ZooDefs.OpCode`.
const CREATE: i32 = 15;
const SYNC: i32 = 9;

/// A way to a server that keeps a creation, and lets it arrive over another connection.
struct Late {
    port: u16,
    state: Arc<Mutex<State>>,
    cuts: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    holds: bool,
    held: Option<Vec<u8>>,
    /// It goes before the next request of this kind, or before any.
    before: Option<Option<i32>>,
    /// The number by which it is answered.
    sent: Option<i32>,
    is_made: bool,
    /// How often it was asked how things are now.
    looks: u64,
}

impl Late {
    async fn to(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (state, cuts) = (Arc::<Mutex<State>>::default(), watch::Sender::new(0));
        let (of_all, cut) = (Arc::clone(&state), cuts.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await;
                let server = server.expect("a connection");
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let (state, mut cut) = (Arc::clone(&of_all), cut.clone());
                cut.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = ask(from_client, to_server, &state) => {}
                        _ = answer(from_server, to_client, &state) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { port, state, cuts }
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("no panic"));
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock().expect("no panic"))
    }

    /// Keeps the next creation, and waits for it.
    fn hold(&self) {
        self.set(|state| state.holds = true);
    }

    async fn holds(&self) {
        let holds = async || self.read(|state| state.held.is_some());
        until("a creation is on its way", holds, |&holds| holds).await;
    }

    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// What was kept arrives, before the next request of this kind.
    fn arrives_before(&self, operation: Option<i32>) {
        self.set(|state| state.before = Some(operation));
    }

    async fn has_arrived(&self) {
        let is_made = async || self.read(|state| state.is_made);
        until("it was made after all", is_made, |&is_made| is_made).await;
    }
}

/// The next message, with its length in front.
async fn message(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut message = length.to_be_bytes().to_vec();
    let mut rest = from.take(length.into());
    rest.read_to_end(&mut message).await?;
    Ok(message)
}

fn number(message: &[u8], at: usize) -> Option<i32> {
    let bytes = message.get(at..)?.first_chunk()?;
    Some(i32::from_be_bytes(*bytes))
}

/// A request has its number behind the length, and then the operation; but the first
/// one opens the session.
async fn ask(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &Mutex<State>,
) -> io::Result<()> {
    to.write_all(&message(&mut from).await?).await?;
    loop {
        let request = message(&mut from).await?;
        let operation = number(&request, 8);
        let late = {
            let mut state = state.lock().expect("no panic");
            state.looks += u64::from(operation == Some(SYNC));
            if state.holds && operation == Some(CREATE) {
                state.holds = false;
                state.held = Some(request);
                continue;
            }
            let is_due = |before: &mut Option<i32>| before.is_none() || *before == operation;
            let is_due = state.before.take_if(is_due).is_some();
            let late = if is_due { state.held.take() } else { None };
            if let Some(late) = &late {
                state.sent = number(late, 4);
            }
            late
        };
        to.write_all(&late.unwrap_or_default()).await?;
        to.write_all(&request).await?;
    }
}

/// An answer has the number of its request, that of the transaction, and then what is
/// wrong. Who is not waiting for it does not get it.
async fn answer(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &Mutex<State>,
) -> io::Result<()> {
    to.write_all(&message(&mut from).await?).await?;
    loop {
        let answer = message(&mut from).await?;
        {
            let mut state = state.lock().expect("no panic");
            if state.sent.is_some() && state.sent == number(&answer, 4) {
                state.is_made = number(&answer, 16) == Some(0);
                continue;
            }
        }
        to.write_all(&answer).await?;
    }
}

/// The first creation is on its way for long.
async fn patient(scene: &Scene, late: &Late) -> LockManager {
    let (port, root) = (late.port, &scene.root);
    let url = format!("zookeeper://127.0.0.1:{port}{root}?session_timeout=30s");
    let manager = locks::connect(config(&url).request_timeout(HANG)).await;
    // One that the server does not remove while it is empty.
    make(&scene.server.client().await, &format!("{root}/key")).await;
    had(&manager, "key").await;
    late.hold();
    manager
}

#[tokio::test]
async fn a_node_that_comes_when_its_caller_has_left_keeps_nobody_out() {
    let scene = Scene::set().await;
    let late = Late::to(scene.server.port()).await;
    let manager = patient(&scene, &late).await;
    let taking = tokio::spawn(manager.lock("key").acquire());
    late.holds().await;
    taking.abort();
    let looks = async || late.read(|state| state.looks);
    until("it is looked for", looks, |&looks| looks > 0).await;
    // The answer to that was before this one's.
    had(&manager, "other").await;
    late.cut();
    late.arrives_before(None);
    late.has_arrived().await;
    had(&connect(&scene.url()).await, "key").await;
    scene.has_nodes("key", 0).await;
}

#[tokio::test]
async fn a_node_that_comes_before_its_second_is_waited_for_by_nobody() {
    let scene = Scene::set().await;
    let late = Late::to(scene.server.port()).await;
    let manager = patient(&scene, &late).await;
    let taking = tokio::spawn(manager.lock("key").acquire());
    late.holds().await;
    late.arrives_before(Some(CREATE));
    late.cut();
    late.has_arrived().await;
    let guard = served(taking).await;
    assert!(guard.is_held());
    scene.has_nodes("key", 1).await;
    guard.release().await.expect("the release");
    scene.has_nodes("key", 0).await;
}

/// What is held stays, and so does what waits for it, whatever comes besides.
#[tokio::test]
async fn a_node_that_comes_late_takes_none_of_the_others_along() {
    let scene = Scene::set().await;
    let late = Late::to(scene.server.port()).await;
    let manager = patient(&scene, &late).await;
    let taking = tokio::spawn(manager.lock("key").acquire());
    late.holds().await;
    late.cut();
    let guard = served(taking).await;
    let waiting = tokio::spawn(manager.lock("key").read().acquire());
    let direct = connect(&scene.url()).await;
    let behind = tokio::spawn(direct.lock("key").acquire());
    scene.has_nodes("key", 3).await;
    late.arrives_before(None);
    late.has_arrived().await;
    scene.has_nodes("key", 3).await;
    assert!(guard.is_held() && !waiting.is_finished() && !behind.is_finished());
    guard.release().await.expect("the release");
    served(waiting).await.release().await.expect("the release");
    served(behind).await.release().await.expect("the release");
}
