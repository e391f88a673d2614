//! Servers whose answers make no sense: values of the wrong type, half frames, lengths
//! that cannot be, bytes of something else. A server speaks its protocol for some steps
//! first, so that also what comes late is asked.

mod etcd;
mod memcached;
mod mysql;
mod postgres;
mod redis;
mod zookeeper;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dlock::{Config, LockError, LockManager};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::property::{SECRET, holds_within, is_plain};
use crate::support::log::Log;
use crate::support::wait::{HANG, within};

/// As short as a machine that does much else allows: who says nothing is waited for.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(150);

/// A call takes a few request timeouts, and what a machine that does much else adds.
const LIMIT: Duration = Duration::from_secs(30);

/// All that is said in this process, by libraries too. Whichever test sees the secret in it fails.
static LOG: LazyLock<Log> = LazyLock::new(Log::capture);

/// So many servers are tried at a time.
const AT_ONCE: usize = 12;

/// What a server does when it is asked.
#[derive(Clone)]
enum Step {
    Says(Vec<u8>),
    /// The beginning of that, and then the end.
    Breaks(Vec<u8>),
    SaysNothing,
}

/// As text where it is text, and short.
impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, said) = match self {
            Self::Says(said) => ("Says", said),
            Self::Breaks(said) => ("Breaks", said),
            Self::SaysNothing => return f.write_str("SaysNothing"),
        };
        match said.len() {
            ..=400 => write!(f, "{name}(b\"{}\")", said.escape_ascii()),
            length => write!(
                f,
                "{name}(b\"{}…\", {length} bytes)",
                said[..200].escape_ascii()
            ),
        }
    }
}

/// A server: how many questions it answers as it should, and what it says to the
/// others, again and again.
#[derive(Clone, Debug)]
struct Script {
    honest: usize,
    steps: Vec<Step>,
}

fn scripts(
    said: impl Strategy<Value = Vec<u8>>,
    honest: usize,
) -> impl Strategy<Value = Vec<Script>> {
    let said = prop_oneof![
        12 => said,
        1 => vec(any::<u8>(), 0..64),
        1 => Just(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
    ];
    let step =
        (said, 0..12_u8, any::<prop::sample::Index>()).prop_map(|(said, how, at)| match how {
            0 => Step::SaysNothing,
            1 => Step::Breaks(said[..at.index(said.len() + 1)].to_vec()),
            2 => Step::Says(said[..at.index(said.len() + 1)].to_vec()),
            _ => Step::Says(said),
        });
    let script = (0..honest, vec(step, 1..5)).prop_map(|(honest, steps)| Script { honest, steps });
    vec(script, 1..=AT_ONCE)
}

/// What a server goes by, over all of its connections.
struct Server {
    script: Script,
    asked: AtomicUsize,
    may_grant: fn(&[u8]) -> bool,
    /// It has said something that can be read as a grant.
    has_granted: AtomicBool,
}

impl Server {
    /// Says the next step, or what is honest. Whether the connection goes on.
    async fn answer(&self, stream: &mut TcpStream, honest: &[u8]) -> bool {
        self.answer_to(stream, honest, None, true).await
    }

    /// The same with the number of the question where this stands for it. Some questions are not
    /// for a lock: what is honest there grants none.
    async fn answer_to(
        &self,
        stream: &mut TcpStream,
        honest: &[u8],
        number: Option<([u8; 4], [u8; 4])>,
        is_for_a_lock: bool,
    ) -> bool {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let honest = Step::Says(honest.to_vec());
        let (step, may_grant) = match asked.checked_sub(self.script.honest) {
            Some(past) => (&self.script.steps[past % self.script.steps.len()], true),
            None => (&honest, is_for_a_lock),
        };
        let (said, goes_on) = match step {
            Step::Says(said) => (said, true),
            Step::Breaks(said) => (said, false),
            Step::SaysNothing => return true,
        };
        if may_grant && (self.may_grant)(said) {
            self.has_granted.store(true, Ordering::Relaxed);
        }
        let said = number.map_or_else(
            || said.clone(),
            |(place, number)| filled(said, place, number),
        );
        stream.write_all(&said).await.is_ok() && goes_on
    }

    fn is_honest(&self) -> bool {
        self.asked.load(Ordering::Relaxed) < self.script.honest
    }
}

fn filled(said: &[u8], place: [u8; 4], number: [u8; 4]) -> Vec<u8> {
    let mut out = said.to_vec();
    let places = said
        .windows(4)
        .enumerate()
        .filter(|(_, window)| *window == place);
    for (at, _) in places {
        out[at..at + 4].copy_from_slice(&number);
    }
    out
}

/// A connection of one of these protocols.
trait Protocol: 'static {
    /// The end of a manager waits for what may be in the store, for as long as it would
    /// last there.
    const TTL: Duration = Duration::from_millis(500);

    /// Where a server is, with a password.
    fn url(port: u16) -> String;

    fn serve(stream: TcpStream, server: Arc<Server>) -> impl Future<Output = ()> + Send;

    /// Whether a lock may have been granted, or given back, by an answer in which this is: it has
    /// what each such answer has, whatever else there is. Of protocols in which nearly all has it,
    /// this says nothing.
    fn may_grant(_: &[u8]) -> bool {
        true
    }
}

/// Whatever it says, all calls end, say where it was, show no password, and have no lock that it
/// did not grant.
async fn ends_well<P: Protocol>(script: Script) -> TestCaseResult {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let server = Arc::new(Server {
        script,
        asked: AtomicUsize::new(0),
        may_grant: P::may_grant,
        has_granted: AtomicBool::new(false),
    });
    let mut serving = JoinSet::new();
    serving.spawn({
        let server = Arc::clone(&server);
        async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                connections.spawn(P::serve(stream, Arc::clone(&server)));
            }
        }
    });
    let config = Config::from_url(&P::url(port)).expect("a valid URL");
    let config = config.request_timeout(REQUEST_TIMEOUT).ttl(P::TTL);
    let config = config.timeout(REQUEST_TIMEOUT);
    let manager = match within(LIMIT, LockManager::connect(config)).await {
        Ok(manager) => manager,
        Err(error) => return says_where(&error, port),
    };
    let lock = |key: &str| manager.lock(key);
    let short = REQUEST_TIMEOUT;
    let held = async {
        let guard = lock("held").try_acquire().await?;
        guard.release().await
    };
    let (held, tried, waited, read, inspected, listed, ran) = tokio::join!(
        within(LIMIT, held),
        within(LIMIT, lock("tried").try_acquire()),
        within(LIMIT, lock("waited").acquire_within(short)),
        within(LIMIT, lock("read").read().try_acquire()),
        within(LIMIT, manager.inspect("inspected")),
        within(LIMIT, manager.list("listed")),
        within(LIMIT, lock("ran").run(async {})),
    );
    let all = [
        held,
        tried.map(drop),
        waited.map(drop),
        read.map(drop),
        inspected.map(drop),
        listed.map(drop),
        ran,
    ];
    if !server.has_granted.load(Ordering::Relaxed) {
        let [inspected, listed] = [4, 5];
        let had = all.iter().enumerate();
        let had =
            had.filter(|(call, answer)| answer.is_ok() && ![inspected, listed].contains(call));
        let had: Vec<_> = had.map(|(call, _)| CALLS[call]).collect();
        prop_assert!(had.is_empty(), "locks that nobody granted: {:?}", had);
    }
    for error in all.into_iter().filter_map(Result::err) {
        says_where(&error, port)?;
    }
    // It waits until what may be in the store has ended there.
    within(LIMIT + P::TTL, manager.shutdown()).await;
    Ok(())
}

/// What is called, each by the name of its lock.
const CALLS: [&str; 7] = [
    "held",
    "tried",
    "waited",
    "read",
    "inspected",
    "listed",
    "ran",
];

/// No line that was logged since the last look has the secret in it.
fn log_is_plain() -> TestCaseResult {
    let log = Log::take(&LOG);
    let shown = log.lines().find(|line| line.contains(SECRET));
    let shown = shown.map(|line| line.chars().take(1_000).collect::<String>());
    prop_assert!(shown.is_none(), "the password, in the log: {:?}", shown);
    Ok(())
}

fn says_where(error: &LockError, port: u16) -> TestCaseResult {
    is_plain(error)?;
    let said = error.to_string();
    let names_lock = CALLS.iter().any(|name| said.contains(&format!("`{name}")));
    // Of a quorum, those are named that are not there. A master is where the sentinels say that it
    // is, and a node of a cluster where the nodes say.
    let places = [
        &*format!("127.0.0.1:{port}"),
        "127.0.0.2:1",
        "redis master",
        "redis cluster node at ",
        "connections to cluster at ",
    ];
    let named = names_lock || places.iter().any(|place| said.contains(place));
    prop_assert!(named, "neither the lock nor the server: {}", said);
    Ok(())
}

fn all_end_well<P: Protocol>(cases: u32, said: impl Strategy<Value = Vec<u8>>, honest: usize) {
    LazyLock::force(&LOG);
    holds_within(2 * HANG, cases, scripts(said, honest), async |scripts| {
        let mut all = JoinSet::new();
        for script in scripts {
            all.spawn(ends_well::<P>(script));
        }
        let ended: TestCaseResult = all.join_all().await.into_iter().collect();
        ended.and_then(|()| log_is_plain())
    });
}

/// A server that says this to all but how a session begins: nothing of ours gives up.
fn told_at_connecting<P: Protocol>(said: Vec<u8>) {
    told_after::<P>(2, said);
}

/// A server that says this to all but the first questions.
fn told_after<P: Protocol>(honest: usize, said: Vec<u8>) {
    let script = Script {
        honest,
        steps: vec![Step::Says(said)],
    };
    LazyLock::force(&LOG);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ended = runtime.block_on(within(HANG, ends_well::<P>(script)));
    ended
        .and_then(|()| log_is_plain())
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// What a server says of an error: on one line, as a rule.
fn words() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => select(&["no", "", "see the log", "`x`", "{}", "%s", "a\tb", "\u{1b}[31m", "\u{202e}x", "\u{7}"][..])
            .prop_map(str::to_owned),
        1 => Just("long ".repeat(20_000)),
        1 => any::<char>().prop_map(String::from),
    ]
}

const LIMITS: &[i64] = &[
    i64::MAX,
    i64::MIN,
    i64::MAX - 63,
    u32::MAX as i64,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 40,
];

/// Numbers at which something ends.
fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        3 => -3..100_i64,
        1 => any::<i64>(),
        2 => select(LIMITS),
    ]
}
