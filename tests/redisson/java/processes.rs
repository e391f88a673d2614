//! Processes in Java and Rust that go in and out of what their locks protect, some of them
//! killed and some paused.

use std::time::Duration;

use dlock::LockManager;
use redis::Commands as _;

use crate::service::{Service, VERSIONS, WATCH_DOG};
use crate::support::calm::unless_it_stands_still;
use crate::support::process::Process;
use crate::support::redis::RedisServer;
use crate::support::resource::{Resource, Section, Visit, now};
use crate::support::wait::until;
use crate::support::{locks, worker};
use crate::{Pair, url};

/// How long a lock of ours lasts whose process has died.
pub(crate) const TTL: Duration = WATCH_DOG;

/// A process of ours that holds a lock for as long as it lives.
pub(crate) async fn holder(server: &RedisServer, pair: Pair, key: &str) -> Process {
    let process = waiter(server, pair, key);
    let is_held = async || server.command::<bool>(&["EXISTS", key]).await;
    until("it holds", is_held, |held| *held).await;
    process
}

/// One that wants to.
pub(crate) fn waiter(server: &RedisServer, pair: Pair, key: &str) -> Process {
    let kind = if pair.reads { "read" } else { "write" };
    start(
        "holds",
        server,
        pair.recipe,
        &[("key", key), ("kinds", kind)],
    )
}

fn start(role: &str, server: &RedisServer, recipe: &str, settings: &[(&str, &str)]) -> Process {
    let server = server.url();
    let url = url(&server, recipe);
    let mut all = vec![("url", &*url), ("server", &*server)];
    all.extend(settings);
    worker::start(role, &all)
}

pub(crate) fn play(role: &str) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let config = locks::config(&worker::setting("url")).ttl(TTL);
        let manager = locks::connect(config).await;
        match role {
            "holds" => {
                let request = manager.lock(worker::setting("key"));
                let request = locks::wants(request, worker::setting("kinds") == "read");
                let _held = request.acquire().await.expect("the lock");
                std::future::pending::<()>().await;
            }
            "works" => work(&manager).await,
            role => panic!("no role `{role}`"),
        }
    });
}

/// What the services in Java do too.
async fn work(manager: &LockManager) {
    let [name, kinds] = ["name", "kinds"].map(worker::setting);
    let kinds: Vec<_> = kinds.split(',').collect();
    let resource = worker::setting("resource").parse().expect("an address");
    let client = redis::Client::open(worker::setting("server")).expect("a URL");
    let mut server = client.get_connection().expect("a connection");
    while !server.exists::<_, bool>("stop").expect("an answer") {
        let reads = fastrand::choice(&kinds).expect("a kind") == &"read";
        let asked = now();
        let request = locks::wants(manager.lock("key"), reads);
        let Ok(guard) = request.acquire().await else {
            // It was paused for longer than anybody waits for an answer.
            continue;
        };
        let visit = Visit::new(&name, guard.token().into(), asked).reads(reads);
        let entered = Section::visit(resource, visit).await.expect("the resource");
        if let Ok(section) = entered {
            // Refused: it is late, as the resource says.
            let _ = inside(section, reads).await;
        }
        // It may be lost by now.
        let _ = guard.release().await;
    }
}

/// Adds one, or only looks.
async fn inside(mut section: Section, reads: bool) -> Option<()> {
    let value = section.read().await.expect("the resource").ok()?;
    tokio::time::sleep(Duration::from_millis(3)).await;
    if !reads {
        let written = section.write(value + 1).await.expect("the resource");
        written.ok()?;
    }
    section.leave().await.expect("the resource").ok()?;
    Some(())
}

/// Waits until so much more was added, by whoever is left.
async fn goes_on(resource: &Resource, by: u64) {
    let least = resource.value() + by;
    let value = async || resource.value();
    until("it goes on", value, |value| *value >= least).await;
    resource.history().check();
}

/// Waits until it was inside a few times.
async fn comes_in(resource: &Resource, name: &str) {
    let entries = async || {
        let history = resource.history();
        history.check();
        history.entries_of(name)
    };
    until(&format!("{name} comes in"), entries, |&count| count > 1).await;
}

/// Nobody is inside beside another, nothing that was added is lost, and who dies or stands
/// still holds up the others for no longer than its lease.
async fn bear_kills_and_pauses(recipe: &str, kinds: &str) {
    // Nobody can renew then what is to be renewed.
    let renewals = WATCH_DOG / 4;
    unless_it_stands_still(renewals, async || contend(recipe, kinds).await).await;
}

const JAVA: [&str; 3] = ["java-1", "java-2", "java-3"];
const RUST: [&str; 3] = ["rust-1", "rust-2", "rust-3"];

async fn contend(recipe: &str, kinds: &str) {
    let server = RedisServer::start().await;
    let resource = Resource::start();
    let mut services = Vec::new();
    // One of each version is paused, and one of either is killed.
    let killed = VERSIONS[fastrand::usize(..VERSIONS.len())];
    for (name, version) in JAVA.into_iter().zip([VERSIONS[0], VERSIONS[1], killed]) {
        let mut java = Service::start(version, "single", &[server.port()]).await;
        let port = resource.address().port();
        java.order(&format!("work {kinds} key {port} {name}"));
        services.push(java);
    }
    let address = resource.address().to_string();
    let mut processes = RUST.map(|name| {
        let settings = [("resource", &*address), ("kinds", kinds), ("name", name)];
        start("works", &server, recipe, &settings)
    });
    for name in JAVA.into_iter().chain(RUST) {
        comes_in(&resource, name).await;
    }
    // Whether they hold the lock just then, or wait, is left to chance.
    for (paused, kills) in [(0, false), (1, true)] {
        services[paused].program.process.pause();
        resource.suspended(JAVA[paused]);
        goes_on(&resource, 20).await;
        processes[paused].pause();
        resource.suspended(RUST[paused]);
        goes_on(&resource, 20).await;
        if kills {
            services[2].program.process.kill();
            resource.suspended(JAVA[2]);
            goes_on(&resource, 20).await;
            processes[2].kill();
            resource.suspended(RUST[2]);
            goes_on(&resource, 20).await;
        }
        // Longer than their leases last.
        tokio::time::sleep(WATCH_DOG + TTL / 2).await;
        resource.resumed(JAVA[paused]);
        services[paused].program.process.resume();
        resource.resumed(RUST[paused]);
        processes[paused].resume();
        goes_on(&resource, 100).await;
    }
    server.command::<()>(&["SET", "stop", "1"]).await;
    for java in services.iter_mut().take(2) {
        assert_eq!(java.answer().await, "worked");
    }
    for process in processes.iter_mut().take(2) {
        let status = process.end().await;
        assert!(status.success(), "{status}");
    }
    let history = resource.history();
    history.check();
    // Or nobody would have seen what goes wrong beside readers.
    assert_eq!(history.most_readers() > 1, kinds.contains("read"));
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn kills_and_pauses_add_up_under_a_lock() {
    bear_kills_and_pauses("lock", "lock").await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn kills_and_pauses_add_up_where_some_read_and_some_write() {
    bear_kills_and_pauses("read-write", "read,write").await;
}

/// The counter refuses a token that is lower than another before it.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn kills_and_pauses_add_up_under_a_fenced_lock() {
    bear_kills_and_pauses("fenced", "fenced").await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn kills_and_pauses_add_up_under_a_fair_lock() {
    bear_kills_and_pauses("fair", "fair").await;
}
