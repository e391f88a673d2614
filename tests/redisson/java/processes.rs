//! Processes in Java and Rust on one counter, some of them killed and some paused.

use std::time::{Duration, Instant};

use redis::Commands as _;

use crate::service::{Service, VERSIONS, WATCH_DOG};
use crate::support::process::Process;
use crate::support::redis::RedisServer;
use crate::support::wait::until;
use crate::support::{locks, worker};
use crate::url;

/// How long a lock of ours lasts whose process has died.
const TTL: Duration = WATCH_DOG;

/// A process of ours that holds a lock for as long as it lives.
pub(crate) async fn holder(server: &RedisServer, recipe: &str, key: &str) -> Process {
    let process = start("holds", server, recipe, key);
    let is_held = async || server.command::<bool>(&["EXISTS", key]).await;
    until("it holds", is_held, |held| *held).await;
    process
}

/// One that wants to.
pub(crate) fn waiter(server: &RedisServer, recipe: &str, key: &str) -> Process {
    start("holds", server, recipe, key)
}

fn start(role: &str, server: &RedisServer, recipe: &str, key: &str) -> Process {
    let server = server.url();
    let url = url(&server, recipe);
    worker::start(role, &[("url", &url), ("server", &server), ("key", key)])
}

pub(crate) fn play(role: &str) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let config = locks::config(&worker::setting("url")).ttl(TTL);
        let manager = locks::connect(config).await;
        let key = worker::setting("key");
        match role {
            "holds" => {
                let _held = manager.lock(key).acquire().await.expect("the lock");
                std::future::pending::<()>().await;
            }
            "works" => work(&manager, &key).await,
            role => panic!("no role `{role}`"),
        }
    });
}

const ADD: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                   redis.call('SET', KEYS[1], ARGV[1] + 1) \
                   return 1";

/// What the services in Java do too.
async fn work(manager: &dlock::LockManager, key: &str) {
    let client = redis::Client::open(worker::setting("server")).expect("a URL");
    let mut server = client.get_connection().expect("a connection");
    while !server.exists::<_, bool>("stop").expect("an answer") {
        let asked = Instant::now();
        let Ok(guard) = manager.lock(key).acquire().await else {
            // It was paused for longer than anybody waits for an answer.
            continue;
        };
        let before: u64 = server.get("counter").expect("a number");
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut add = redis::cmd("EVAL");
        add.arg(ADD).arg(1).arg("counter").arg(before);
        let added = add.query::<bool>(&mut server).expect("an answer");
        let mut report = |what| server.incr::<_, _, ()>(what, 1).expect("an answer");
        if added {
            report("worked");
            if asked.elapsed() > TTL && !guard.is_held() {
                report("late");
            }
        } else if guard.is_held() {
            report("overlaps here");
        }
        // It may be lost by now.
        let _ = guard.release().await;
    }
}

async fn number(server: &RedisServer, name: &str) -> u64 {
    let number: Option<u64> = server.command(&["GET", name]).await;
    number.unwrap_or_default()
}

/// Waits until so much more was done, by whoever is left.
async fn goes_on(server: &RedisServer, by: u64) {
    let least = number(server, "worked").await + by;
    let worked = async || number(server, "worked").await;
    until("it goes on", worked, |worked| *worked >= least).await;
}

/// Nobody is inside beside another, nothing that was added is lost, and who dies or stands
/// still holds up the others for no longer than its lease.
async fn add_up(recipe: &str, kind: &str) {
    let server = RedisServer::start().await;
    server.command::<()>(&["SET", "counter", "0"]).await;
    let mut services = Vec::new();
    for version in [VERSIONS[0], VERSIONS[1], VERSIONS[1]] {
        let mut java = Service::start(version, "single", &[server.port()]).await;
        java.order(&format!("work {kind} key"));
        services.push(java);
    }
    let mut processes: Vec<_> = (0..3)
        .map(|_| start("works", &server, recipe, "key"))
        .collect();
    goes_on(&server, 200).await;
    // Whether they hold the lock just then, or wait, is left to chance.
    let mut killed = 0;
    for round in 0..3 {
        services[0].program.process.pause();
        goes_on(&server, 20).await;
        processes[0].pause();
        goes_on(&server, 20).await;
        if round == 1 {
            services[2].program.process.kill();
            goes_on(&server, 20).await;
            processes[2].kill();
            killed = 2;
            goes_on(&server, 20).await;
        }
        // Longer than their leases last.
        tokio::time::sleep(WATCH_DOG + TTL / 2).await;
        services[0].program.process.resume();
        processes[0].resume();
        goes_on(&server, 100).await;
    }
    server.command::<()>(&["SET", "stop", "1"]).await;
    for java in services.iter_mut().take(2) {
        assert_eq!(java.answer().await, "worked");
    }
    for process in processes.iter_mut().take(2) {
        let status = process.end().await;
        assert!(status.success(), "{status}");
    }
    // Who was paused before it read the counter adds one when its lease has long ended, which
    // only a token would show: whoever holds the lock then sees that once.
    let late = number(&server, "late").await;
    let there = number(&server, "overlaps").await;
    let here = number(&server, "overlaps here").await;
    assert!(
        there + here <= late,
        "{there} in Java, {here} here, {late} late"
    );
    let (counter, worked) = (
        number(&server, "counter").await,
        number(&server, "worked").await,
    );
    // Who was killed may have added one, and not have said so.
    assert!(
        (worked..=worked + killed).contains(&counter),
        "{counter} for {worked}"
    );
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn kills_and_pauses_add_up_under_a_lock() {
    add_up("lock", "lock").await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn kills_and_pauses_add_up_under_a_writers_lock() {
    add_up("read-write", "write").await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn kills_and_pauses_add_up_under_a_fenced_lock() {
    add_up("fenced", "fenced").await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn kills_and_pauses_add_up_under_a_fair_lock() {
    add_up("fair", "fair").await;
}
