//! What somebody else has put where dlock's keys belong: of any type, of any size. It is
//! told by the name of its key, and stays as it was.

use dlock::{Config, LockError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use redis::{ToSingleRedisArg, Value};

use crate::lock_name;
use crate::property::{holds_within, is_of_others, is_plain, told_of};
use crate::support::locks::{config, connect, is_misconfigured, queued, says};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};

/// What belongs to the lock `key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Lock,
    Queue,
    /// Beside a lock that says that it has readers.
    Readers,
    /// Beside a lock that is free.
    ReadersOfNone,
    Counter,
}

impl Part {
    fn name(self) -> String {
        let lock = lock_name("key");
        match self {
            Self::Lock => lock,
            Self::Queue => lock + ":queue",
            Self::Readers | Self::ReadersOfNone => lock + ":readers",
            Self::Counter => "dlock:token".to_owned(),
        }
    }
}

/// What is there: the command that puts it there, without its key.
#[derive(Clone, Debug)]
struct Foreign {
    command: &'static str,
    values: Vec<Vec<u8>>,
}

impl Foreign {
    /// Whether it may be dlock's, as far as its type says.
    fn may_be_ours(&self, part: Part) -> bool {
        self.command
            == match part {
                Part::Lock | Part::Counter => "SET",
                Part::Queue => "RPUSH",
                Part::Readers | Part::ReadersOfNone => "ZADD",
            }
    }
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    let like_ours = select(
        &[
            "",
            "w:",
            "r:",
            "w:1.1",
            "w:1.1+",
            "w:1.1?",
            "w:1.1!",
            "r:1.1",
            "x:1.1",
            "w:g.1",
            "W:1.1",
            "w:1.1\n",
            "w:1.1:30000:2.2",
            "r:1.1:99999999999999999999:2.2",
            "w:1.1:0:",
            "1.1",
            "1.1?",
            "hello",
            "many",
            "1.5",
            "-1",
            "0",
            "42",
            "9223372036854775807",
            "9223372036854775800",
            "-9223372036854775808",
            "1e3",
            " 7",
            "0x10",
            "\u{1b}[31m",
        ][..],
    );
    prop_oneof![
        4 => like_ours.prop_map(|text| text.as_bytes().to_vec()),
        2 => vec(any::<u8>(), 0..40),
        1 => (1..4_usize).prop_map(|size| vec![b'x'; size << 20]),
    ]
}

fn foreign() -> impl Strategy<Value = Foreign> {
    let score = select(
        &[
            "0",
            "1",
            "-1",
            "1.5",
            "inf",
            "-inf",
            "1e300",
            "9999999999999",
        ][..],
    );
    let of = |command, values| Foreign { command, values };
    prop_oneof![
        5 => text().prop_map(move |text| of("SET", vec![text])),
        2 => vec(text(), 1..4).prop_map(move |texts| of("RPUSH", texts)),
        1 => vec(text(), 1..4).prop_map(move |texts| of("SADD", texts)),
        1 => (text(), text()).prop_map(move |(field, value)| of("HSET", vec![field, value])),
        3 => (score, text()).prop_map(move |(score, text)| of("ZADD", vec![score.into(), text])),
        1 => (text(), text()).prop_map(move |(field, value)| of("XADD", vec![b"*".to_vec(), field, value])),
        1 => text().prop_map(move |text| of("PFADD", vec![text])),
    ]
}

/// In the place of what was there, in one step: a manager that opens a connection would
/// write a counter that is missing.
async fn put(server: &RedisServer, name: impl ToSingleRedisArg + Copy, foreign: &Foreign) {
    let mut step = redis::pipe();
    step.atomic().del(name);
    step.cmd(foreign.command).arg(name).arg(&foreign.values);
    let mut connection = server.connection().await;
    let done: Value = step
        .query_async(&mut connection)
        .await
        .expect("our own server");
    drop(done);
}

async fn is_told_and_kept(server: &RedisServer, part: Part, foreign: &Foreign) -> TestCaseResult {
    server.command::<()>(&["FLUSHALL"]).await;
    let manager = connect(config(&server.url())).await;
    let other = connect(config(&server.url())).await;
    let good = manager.lock("good").try_acquire().await;
    let good = good.expect("it is free");
    let holder = match part {
        Part::Queue => Some(manager.lock("key").try_acquire().await.expect("it is free")),
        _ => None,
    };
    if part == Part::Readers {
        server
            .command::<()>(&["SET", &lock_name("key"), "r:1.1"])
            .await;
    }
    let name = part.name();
    put(server, &*name, foreign).await;
    // A name that is no text is none of a lock.
    let no_text = Foreign {
        command: "SET",
        values: vec!["w:1.1".into()],
    };
    put(server, &b"dlock:{\xff}"[..], &no_text).await;
    let before: Vec<u8> = server.command(&["DUMP", &name]).await;
    let mut told = Vec::new();
    for manager in [&other, &manager] {
        told.extend(told_of(manager, "key").await?);
    }
    // It does not spoil the list of the others.
    // Without tokens there is no new connection.
    if part != Part::Counter {
        let listed = other.list("").await.expect("our own server");
        prop_assert!(listed.iter().any(|lock| lock.key == "good"), "{:?}", listed);
    }
    drop(good);
    drop(holder);
    for error in &told {
        let of_others = is_of_others(error);
        let is_foreign =
            matches!(error, LockError::Config { .. }) && error.to_string().contains(&name);
        prop_assert!(of_others || is_foreign, "{:?}", error);
    }
    if !foreign.may_be_ours(part) {
        prop_assert!(!told.is_empty(), "nobody was told");
        let after: Vec<u8> = server.command(&["DUMP", &name]).await;
        prop_assert!(before == after, "it was changed");
    }
    Ok(())
}

#[test]
fn what_is_not_ours_is_told_by_its_name_and_kept() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime.block_on(RedisServer::start());
    const PARTS: &[Part] = &[
        Part::Lock,
        Part::Queue,
        Part::Readers,
        Part::ReadersOfNone,
        Part::Counter,
    ];
    let part = select(PARTS);
    holds_within(HANG, 60, (part, foreign()), async |(part, foreign)| {
        is_told_and_kept(&server, part, &foreign).await
    });
}

/// A key with the numbers of a holder, a waiter or a process in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfOne {
    Alive,
    Out,
    Since,
    Fencing,
}

async fn is_passed_over(
    server: &RedisServer,
    part: OfOne,
    reads: bool,
    foreign: &Foreign,
) -> TestCaseResult {
    server.command::<()>(&["FLUSHALL"]).await;
    let [holder, waiter, other] = [(), (), ()].map(|()| connect(config(&server.url())));
    let (holder, waiter, other) = tokio::join!(holder, waiter, other);
    let lock = holder.lock("key");
    let lock = if reads { lock.read() } else { lock };
    let guard = lock.try_acquire().await.expect("it is free");
    let waiting = tokio::spawn(waiter.lock("key").run(async {}));
    queued(&other, "key", 1).await;
    let looked = other.inspect("key").await.expect("our own server");
    let looked = looked.expect("it is held");
    let numbers = looked.holders[0].owner.split(['@', '/']).next();
    let numbers = numbers.unwrap_or_default();
    let name = match part {
        OfOne::Alive => {
            let alive: Vec<String> = server.command(&["KEYS", "dlock:alive:*"]).await;
            alive.into_iter().next().expect("somebody waits")
        }
        OfOne::Out => format!("dlock:out:{{key}}:{}", looked.queue[0].owner),
        OfOne::Since => format!("dlock:since:{{key}}:{numbers}"),
        OfOne::Fencing => format!("dlock:fencing:{{key}}:{numbers}"),
    };
    put(server, &name, foreign).await;
    for error in told_of(&other, "key").await? {
        prop_assert!(is_of_others(&error), "{}", error);
    }
    let looked = within(HANG, other.inspect("key")).await;
    let looked = looked.map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert!(looked.is_some_and(|lock| lock.holders.len() == 1));
    let released = within(HANG, guard.release()).await;
    released.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let served = within(HANG, waiting).await.expect("no panic");
    match served {
        // That it was taken out is all that such a key says, whatever is in it.
        Err(error) if part == OfOne::Out => is_plain(&error),
        served => served.map_err(|error| TestCaseError::fail(error.to_string())),
    }
}

#[test]
fn what_is_not_ours_beside_a_holder_or_waiter_is_passed_over() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime.block_on(RedisServer::start());
    const PARTS: &[OfOne] = &[OfOne::Alive, OfOne::Out, OfOne::Since, OfOne::Fencing];
    let inputs = (select(PARTS), any::<bool>(), foreign());
    holds_within(HANG, 40, inputs, async |(part, reads, foreign)| {
        is_passed_over(&server, part, reads, &foreign).await
    });
}

/// No reader can be let in. Who gives the lock back has nothing to do with it.
#[tokio::test]
async fn a_reader_that_waits_is_told_what_stands_in_the_place_of_readers() {
    let server = RedisServer::start().await;
    let [holder, waiter] = [(), ()].map(|()| connect(config(&server.url())));
    let (holder, waiter) = tokio::join!(holder, waiter);
    let guard = holder.lock("key").acquire().await.expect("the lock");
    let mut reading = Vec::new();
    for before in 0..3 {
        reading.push(tokio::spawn(waiter.lock("key").read().acquire()));
        queued(&holder, "key", before + 1).await;
    }
    let writing = tokio::spawn(waiter.lock("key").run(async {}));
    queued(&holder, "key", 4).await;
    let readers = Part::Readers.name();
    server.command::<()>(&["SET", &readers, "hello"]).await;
    let released = within(HANG, guard.release()).await;
    released.expect("its own lock");
    for reading in reading {
        let told = within(HANG, reading).await.expect("no panic");
        says(&is_misconfigured(told), &[&readers, "remove it"]);
    }
    let written = within(HANG, writing).await.expect("no panic");
    written.expect("no reader is in front of it");
    let kept: String = server.command(&["GET", &readers]).await;
    assert_eq!(kept, "hello");
}

/// The type of the key is right, and so is the lock beside it: what is in the set is not.
#[tokio::test]
async fn readers_that_are_none_are_told_by_the_name_of_their_key() {
    let server = RedisServer::start().await;
    let manager = connect(config(&server.url())).await;
    let readers = Part::Readers.name();
    for (end, member) in [
        ("1e300", &b"\xff"[..]),
        ("1e300", b"hello"),
        ("9999999999999", b"hello"),
        ("9999999999999", b"\xff"),
    ] {
        server.command::<()>(&["FLUSHALL"]).await;
        let lock = lock_name("key");
        server.command::<()>(&["SET", &lock, "r:1.1"]).await;
        let foreign = Foreign {
            command: "ZADD",
            values: vec![end.into(), member.into()],
        };
        put(&server, &readers, &foreign).await;
        let looked = within(HANG, manager.inspect("key")).await;
        let said = looked.expect_err("no readers of dlock's").to_string();
        assert!(said.contains(&readers) && !said.contains("hello"), "{said}");
        let listed = within(HANG, manager.list("")).await;
        assert!(listed.expect("our own server").is_empty());
    }
}

/// However it looks, and however long it is, the server has read it at once.
#[tokio::test]
async fn a_long_value_of_somebody_else_stops_nobody() {
    let server = RedisServer::start().await;
    let manager = connect(Config::from_url(&server.url()).expect("a valid URL")).await;
    let signed = "w:1.1@host,1,shop,";
    for (start, letter, end) in [
        ("w:1.", "1", "!"),
        (signed, "1", "!"),
        ("w:1.1@", "a,", "!"),
        ("w:1.1/", "1/", "!"),
        ("w:1.1;", "1", "?+"),
        ("r:1.1@", "1", "/"),
        ("w:dead.beef", "", "xyz"),
        ("w:1.1", "", "-anything"),
        ("d:1.1", "", ";5x"),
    ] {
        let value = start.to_owned() + &letter.repeat(100_000) + end;
        server
            .command::<()>(&["SET", &lock_name("key"), &value])
            .await;
        let asked = within(HANG, manager.lock("key").try_acquire()).await;
        let error = asked.map(drop).expect_err(start);
        let short: String = value.chars().take(30).collect();
        assert!(
            matches!(error, LockError::Config { .. }),
            "{short}: {error:?}"
        );
        assert!(error.to_string().contains("dlock did not write"), "{error}");
    }
}

/// A list shows how many wait, and not each of them.
#[tokio::test]
async fn a_list_does_not_show_who_waits() {
    let server = RedisServer::start().await;
    let manager = connect(Config::from_url(&server.url()).expect("a valid URL")).await;
    let guard = manager.lock("key").acquire().await.expect("the lock");
    let other = connect(Config::from_url(&server.url()).expect("a valid URL")).await;
    let waiting = tokio::spawn(other.lock("key").run(async {}));
    crate::support::locks::queued(&manager, "key", 1).await;
    let listed = manager.list("").await.expect("list");
    assert_eq!((listed[0].waiters, listed[0].queue.len()), (Some(1), 0));
    guard.release().await.expect("the release");
    crate::support::locks::served(waiting).await;
}
