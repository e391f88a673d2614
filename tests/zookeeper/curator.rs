//! Locks that are shared with services in Java: the real Apache Curator, in a
//! Java machine of its own, and dlock.

use std::io::Write as _;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Scene, connect};
use crate::numbers::{FIRST_REFUSED, aged, is_refused};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    had, held, is_busy, is_done, is_taken_out, is_unsupported, queued, says, served, shown, wants,
};
use crate::support::process::command;
use crate::support::program::Program;
use crate::support::wait::{eventually, until};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/zookeeper/Curator.java");

/// Debian's libcurator-recipes-java, and what it needs.
const LIBRARIES: [&str; 6] = [
    "curator-client",
    "curator-framework",
    "curator-recipes",
    "guava",
    "slf4j-nop",
    "zookeeper",
];

/// A service in Java.
struct Curator {
    program: Program,
    orders: ChildStdin,
    heard: usize,
}

impl Curator {
    fn start(scene: &Scene) -> Self {
        let libraries = LIBRARIES.map(|name| format!("/usr/share/java/{name}.jar"));
        let mut java = command("java");
        let port = scene.server.port();
        java.args(["-XX:TieredStopAtLevel=1", "-cp", &libraries.join(":")])
            .args([PROGRAM, &format!("127.0.0.1:{port}")]);
        let mut program = Program::start_with(java, Stdio::piped());
        Self {
            orders: program.process.input().expect("a pipe"),
            program,
            heard: 0,
        }
    }

    /// Says what it is to do, and waits for its first answer.
    async fn told(&mut self, order: &str) -> String {
        let needed = "it listens: apt-get install default-jdk-headless libcurator-recipes-java";
        writeln!(self.orders, "{order}").expect(needed);
        self.answer().await
    }

    async fn answer(&mut self) -> String {
        let next = async || {
            let printed = self.program.printed();
            printed.lines().nth(self.heard).map(str::to_owned)
        };
        let answer = eventually("Curator answers", next).await;
        self.heard += 1;
        answer
    }

    fn has_answered(&self) -> bool {
        self.program.printed().lines().count() > self.heard
    }
}

/// What was done here is no holder to Java, which gets the lock at once, and in its order.
#[tokio::test]
async fn nobody_in_java_waits_behind_what_was_done() {
    let scene = Scene::set().await;
    let mut java = Curator::start(&scene);
    for (recipe, kinds) in [
        ("mutex", &["mutex"][..]),
        ("read-write", &["read", "write"]),
    ] {
        let url = format!("{}?recipe={recipe}", scene.url());
        let manager = connect(&url).await;
        for kind in kinds {
            let key = format!("done:{kind}");
            let once = || manager.lock(&*key).once(Duration::from_secs(3600));
            held(once()).await.release_done().await.expect("the mark");
            is_done(once().try_acquire().await);
            let path = format!("{}/{key}", scene.root);
            assert_eq!(java.told(&format!("{kind} {path}")).await, "waits");
            assert_eq!(java.answer().await, "held", "{kind}");
            // Beside a holder too.
            is_done(once().acquire().await);
            let seen = manager.inspect(&*key).await.expect("inspect");
            assert!(seen.is_some_and(|lock| lock.done.is_some()));
            assert_eq!(java.told("release").await, "released");
        }
    }
}

/// A waiter of ours is taken out of a queue in which Java holds and waits: nobody in Java loses
/// a place. One in Java does not look for what tells it, and stays.
#[tokio::test]
async fn a_waiter_is_taken_out_between_two_in_java() {
    let scene = Scene::set().await;
    let (mut holds, mut waits) = (Curator::start(&scene), Curator::start(&scene));
    let (manager, operator) = (connect(&scene.url()).await, connect(&scene.url()).await);
    let path = format!("{}/key", scene.root);
    let order = format!("mutex {path}");
    assert_eq!(holds.told(&order).await, "waits");
    assert_eq!(holds.answer().await, "held");
    let ours = tokio::spawn(manager.lock("key").acquire());
    scene.has_nodes("key", 2).await;
    assert_eq!(waits.told(&order).await, "waits");
    scene.has_nodes("key", 3).await;

    let queue = operator
        .inspect("key")
        .await
        .expect("inspect")
        .expect("held")
        .queue;
    let [our, java] = &queue[..] else {
        panic!("{queue:?}");
    };
    let refused = operator.break_waiter("key", &java.owner).await;
    says(&is_unsupported(refused), &["not dlock's"]);
    let out = operator
        .break_waiter("key", &our.owner)
        .await
        .expect("it waits");
    assert!(out.is_some());
    is_taken_out(ours.await.expect("no panic"));
    assert_eq!(scene.nodes("key").await.len(), 2);
    assert!(!waits.has_answered());
    assert_eq!(holds.told("release").await, "released");
    assert_eq!(waits.answer().await, "held");
    assert_eq!(waits.told("release").await, "released");
    had(&manager, "key").await;
}

#[tokio::test]
async fn a_mutex_and_a_lock_exclude_each_other() {
    let scene = Scene::set().await;
    let mut java = Curator::start(&scene);
    let manager = connect(&scene.url()).await;
    let path = format!("{}/stock:42", scene.root);

    // Ours, and Curator is kept out, whether it waits or not.
    for read in [false, true] {
        let guard = held(wants(manager.lock("stock:42"), read)).await;
        assert_eq!(java.told(&format!("try-mutex {path}")).await, "busy");
        assert_eq!(java.told(&format!("mutex {path}")).await, "waits");
        queued(&manager, "stock:42", 1).await;
        assert!(guard.is_held() && !java.has_answered());
        guard.release().await.expect("the release");
        assert_eq!(java.answer().await, "held");

        // Curator's, and we are kept out.
        is_busy(manager.lock("stock:42").try_acquire().await);
        is_busy(manager.lock("stock:42").read().try_acquire().await);
        let waiting = tokio::spawn(manager.lock("stock:42").acquire());
        queued(&manager, "stock:42", 1).await;
        assert!(!waiting.is_finished());
        assert_eq!(java.told("release").await, "released");
        served(waiting).await.release().await.expect("the release");
    }
    // What is free is free for both.
    assert_eq!(java.told(&format!("try-mutex {path}")).await, "held");
    assert_eq!(java.told("release").await, "released");
    had(&manager, "stock:42").await;
}

#[tokio::test]
async fn a_read_write_lock_and_ours_exclude_each_other() {
    let scene = Scene::set().await;
    let mut java = Curator::start(&scene);
    let manager = connect(&format!("{}?recipe=read-write", scene.url())).await;
    let path = format!("{}/key", scene.root);

    // Readers of both share.
    let reader = held(manager.lock("key").read()).await;
    assert_eq!(java.told(&format!("try-read {path}")).await, "held");
    is_busy(manager.lock("key").try_acquire().await);
    assert_eq!(java.told("release").await, "released");
    // A writer of theirs waits for a reader of ours, and the other way round.
    assert_eq!(java.told(&format!("write {path}")).await, "waits");
    queued(&manager, "key", 1).await;
    is_busy(manager.lock("key").read().try_acquire().await);
    assert!(!java.has_answered());
    reader.release().await.expect("the release");
    assert_eq!(java.answer().await, "held");
    is_busy(manager.lock("key").read().try_acquire().await);
    let waiting = tokio::spawn(manager.lock("key").acquire());
    queued(&manager, "key", 1).await;
    assert_eq!(java.told("release").await, "released");
    let writer = served(waiting).await;
    for order in ["try-read", "try-write"] {
        assert_eq!(java.told(&format!("{order} {path}")).await, "busy");
    }
    assert_eq!(java.told(&format!("read {path}")).await, "waits");
    queued(&manager, "key", 1).await;
    writer.release().await.expect("the release");
    assert_eq!(java.answer().await, "held");
    is_busy(manager.lock("key").try_acquire().await);
    drop(held(manager.lock("key").read()).await);
    assert_eq!(java.told("release").await, "released");
    had(&manager, "key").await;
}

/// With its first renewal, a node of ours says since when it holds. One of Java's that waits for it
/// is woken by that, and waits on.
#[tokio::test]
async fn java_waits_on_behind_one_that_says_since_when() {
    unless_it_stands_still(Duration::from_millis(500), async || {
        let scene = Scene::set().await;
        let (mut holds, mut waits) = (Curator::start(&scene), Curator::start(&scene));
        let (manager, operator) = (connect(&scene.url()).await, connect(&scene.url()).await);
        let order = format!("mutex {}/key", scene.root);
        assert_eq!(holds.told(&order).await, "waits");
        assert_eq!(holds.answer().await, "held");
        let ours = tokio::spawn(manager.lock("key").ttl(Duration::from_secs(2)).acquire());
        scene.has_nodes("key", 2).await;
        assert_eq!(waits.told(&order).await, "waits");
        scene.has_nodes("key", 3).await;
        assert_eq!(holds.told("release").await, "released");
        let guard = served(ours).await;
        let since = async || shown(&operator, "key").await.holders[0].since;
        until("it says since when", since, Option::is_some).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(guard.is_held() && !waits.has_answered());
        assert_eq!(scene.nodes("key").await.len(), 2);
        guard.release().await.expect("the release");
        assert_eq!(waits.answer().await, "held");
        assert_eq!(waits.told("release").await, "released");
    })
    .await;
}

/// To Curator, who has a permit is a reader.
#[tokio::test]
async fn a_permit_of_ours_is_a_reader_to_a_read_write_lock() {
    let scene = Scene::set().await;
    let mut java = Curator::start(&scene);
    let manager = connect(&format!("{}?recipe=read-write", scene.url())).await;
    let path = format!("{}/key", scene.root);
    let permits = |most| manager.lock("key").permits(most);

    // A reader of theirs is let in beside it, and is one of so many.
    let permit = held(permits(2)).await;
    assert_eq!(java.told(&format!("try-read {path}")).await, "held");
    is_busy(permits(2).try_acquire().await);
    drop(held(permits(3)).await);
    assert_eq!(java.told("release").await, "released");
    // A writer of theirs waits for it, and it for the writer.
    assert_eq!(java.told(&format!("try-write {path}")).await, "busy");
    assert_eq!(java.told(&format!("write {path}")).await, "waits");
    queued(&manager, "key", 1).await;
    is_busy(permits(2).try_acquire().await);
    assert!(!java.has_answered());
    permit.release().await.expect("the release");
    assert_eq!(java.answer().await, "held");
    let waiting = tokio::spawn(permits(2).acquire());
    queued(&manager, "key", 1).await;
    assert!(!waiting.is_finished());
    assert_eq!(java.told("release").await, "released");
    served(waiting).await.release().await.expect("the release");
    had(&manager, "key").await;
}

/// Where dlock stops, Curator goes on. Nobody of dlock is inside beside it.
#[tokio::test]
async fn curator_goes_on_where_we_stop() {
    let scene = Scene {
        server: Arc::new(aged(FIRST_REFUSED - 2).await),
        root: "/dlock".to_owned(),
    };
    let mut java = Curator::start(&scene);
    let process = async || connect(&scene.url()).await;
    let (manager, other, late) = (process().await, process().await, process().await);
    let guard = held(manager.lock("key")).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    queued(&manager, "key", 1).await;
    assert_eq!(java.told("mutex /dlock/key").await, "waits");
    queued(&manager, "key", 2).await;
    is_refused(late.lock("key").try_acquire().await);
    // Who queued before is served before.
    guard.release().await.expect("the release");
    let guard = served(waiting).await;
    assert!(!java.has_answered());
    guard.release().await.expect("the release");
    assert_eq!(java.answer().await, "held");
    is_refused(late.lock("key").try_acquire().await);
    assert_eq!(java.told("release").await, "released");
}
