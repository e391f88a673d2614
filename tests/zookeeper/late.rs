//! A creation that comes when its session was already told that there is no such node.
//!
//! A server that is cut off keeps it, and sends it on when the session has been
//! elsewhere and is back. Whether the leader takes it then is a race of two of its
//! threads. Here it is always taken.

use std::sync::{Arc, Mutex, MutexGuard};

use dlock::LockManager;
use zookeeper_client::{Acl, Acls, AuthId, Permission};

use crate::harness::{Scene, config, connect};
use crate::messages::{Reader, number, operation, read_by};
use crate::support::locks::{self, had, held, is_misconfigured, served};
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, until};
use crate::support::zookeeper::make;

// `ZooDefs.OpCode`.
const CREATE: i32 = 15;
const SYNC: i32 = 9;

/// Keeps a creation, and lets it arrive over another connection.
#[derive(Default)]
struct Late(Mutex<State>);

#[derive(Default)]
struct State {
    holds: bool,
    held: Option<Vec<u8>>,
    /// It goes over the next connection, before its first request.
    is_planned: bool,
    /// It goes before the next request of this kind, or before any.
    before: Option<Option<i32>>,
    /// The number by which it is answered.
    sent: Option<i32>,
    is_made: bool,
    /// How often it was asked how things are now.
    looks: u64,
}

impl Late {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }

    async fn holds(&self) {
        let holds = async || self.state().held.is_some();
        until("a creation is on its way", holds, |&holds| holds).await;
    }

    /// What was kept arrives, before the next request of this kind.
    fn arrives_before(&self, operation: Option<i32>) {
        self.state().before = Some(operation);
    }

    /// What was kept arrives over the next connection. One that is cut may still have a request
    /// under way, whose answer nobody reads.
    fn arrives_when_it_is_back(&self) {
        self.state().is_planned = true;
    }

    async fn has_arrived(&self) {
        let is_made = async || self.state().is_made;
        until("it was made after all", is_made, |&is_made| is_made).await;
    }
}

impl Reader for Late {
    fn connected(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.is_planned) {
            state.before = Some(None);
        }
    }

    fn asked(&self, request: Vec<u8>) -> Vec<u8> {
        let operation = operation(&request);
        let mut state = self.state();
        state.looks += u64::from(operation == Some(SYNC));
        if state.holds && operation == Some(CREATE) {
            state.holds = false;
            state.held = Some(request);
            return Vec::new();
        }
        let is_due = |before: &mut Option<i32>| before.is_none() || *before == operation;
        let is_due = state.before.take_if(is_due).is_some();
        let late = if is_due { state.held.take() } else { None };
        if let Some(late) = &late {
            state.sent = number(late, 4);
        }
        [late.unwrap_or_default(), request].concat()
    }

    /// An answer has the number of its request, that of the transaction, and then what is
    /// wrong. Who is not waiting for it does not get it.
    fn answered(&self, answer: Vec<u8>) -> Vec<u8> {
        let mut state = self.state();
        if state.sent.is_some() && state.sent == number(&answer, 4) {
            state.is_made = number(&answer, 16) == Some(0);
            return Vec::new();
        }
        answer
    }
}

/// A manager whose first creation is on its way for long, and its way there.
async fn patient(scene: &Scene) -> (LockManager, Arc<Late>, Proxy) {
    let late = Arc::<Late>::default();
    let proxy = Proxy::to(read_by(Arc::clone(&late), scene.server.port()).await);
    let config = config(&scene.url_through(&proxy, "30s")).request_timeout(HANG);
    let manager = locks::connect(config).await;
    // One that the server does not remove while it is empty.
    let folder = format!("{}/key", scene.root);
    make(&scene.server.client().await, &folder).await;
    had(&manager, "key").await;
    late.state().holds = true;
    (manager, late, proxy)
}

/// The node of a caller that leaves comes when the session is back.
async fn keeps_nobody_out(scene: &Scene, manager: &LockManager, late: &Late, proxy: &Proxy) {
    let taking = tokio::spawn(manager.lock("key").acquire());
    late.holds().await;
    taking.abort();
    let looks = async || late.state().looks;
    until("it is looked for", looks, |&looks| looks > 0).await;
    // The answer to that was before this one's.
    had(manager, "other").await;
    late.arrives_when_it_is_back();
    proxy.cut();
    late.has_arrived().await;
    had(&connect(&scene.url()).await, "key").await;
}

#[tokio::test]
async fn a_node_that_comes_when_its_caller_has_left_keeps_nobody_out() {
    let scene = Scene::set().await;
    let (manager, late, proxy) = patient(&scene).await;
    keeps_nobody_out(&scene, &manager, &late, &proxy).await;
    scene.has_nodes("key", 0).await;
}

/// Many, as the server lists them in any order.
#[tokio::test]
async fn nodes_that_cannot_be_deleted_keep_no_other_from_it() {
    let scene = Scene::set().await;
    let (manager, late, proxy) = patient(&scene).await;
    late.state().holds = false;
    let client = scene.server.client().await;
    let all_but_delete = Permission::READ | Permission::WRITE | Permission::CREATE;
    let rights = [Acl::new(all_but_delete, AuthId::anyone())];
    let other = connect(&scene.url()).await;
    for number in 0..20 {
        let key = format!("stuck-{number}");
        let guard = held(other.lock(&*key)).await;
        let waiting = tokio::spawn(manager.lock(&*key).acquire());
        scene.has_nodes(&key, 2).await;
        let folder = format!("{}/{key}", scene.root);
        let set = client.set_acl(&folder, &Acls::new(&rights), None).await;
        set.expect("its rights");
        waiting.abort();
        is_misconfigured(guard.release().await);
    }
    late.state().holds = true;
    keeps_nobody_out(&scene, &manager, &late, &proxy).await;
}

#[tokio::test]
async fn a_node_that_comes_before_its_second_is_waited_for_by_nobody() {
    let scene = Scene::set().await;
    let (manager, late, proxy) = patient(&scene).await;
    let taking = tokio::spawn(manager.lock("key").acquire());
    late.holds().await;
    late.arrives_before(Some(CREATE));
    proxy.cut();
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
    let (manager, late, proxy) = patient(&scene).await;
    let taking = tokio::spawn(manager.lock("key").acquire());
    late.holds().await;
    proxy.cut();
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
