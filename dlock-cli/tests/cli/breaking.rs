//! `dlock break`, as a process.

use crate::support::memcached::Memcached;
use crate::support::program::Program;
use crate::support::server::Server;
use crate::support::wait::{HANG, until, within};
use crate::terminal::Terminal;
use crate::{code, column, dlock, json, printed, ran, redis, stderr, stdout};

const HOLDS: [&str; 4] = [
    "--",
    "sh",
    // A variable that is not set is an error.
    "-uc",
    "echo pid $$; echo token $DLOCK_TOKEN; sleep 1000",
];

/// A lease that outlasts some steps of the test on a busy machine. That it is broken, its holder
/// learns when a third of it is over.
const TTL: [&str; 2] = ["--ttl", "12s"];

/// A process that has the lock, with what it calls its token.
async fn holder(url: &str, options: &[&str]) -> (Program, String) {
    // With no time to end in, a lease may be shorter than a request timeout.
    let arguments = [&["run", "-k", "0s"], options, &["k"], &HOLDS[..]].concat();
    let program = Program::start(dlock(url, &arguments));
    printed(&program, "pid ").await;
    let token = printed(&program, "token").await;
    (program, token)
}

/// The owners that are shown, of those who hold or wait.
async fn owners(url: &str, part: &str) -> Vec<String> {
    let shown = json(url, &["show", "k"]).await;
    let list = shown[0][part].as_array().into_iter().flatten();
    let owners = list.map(|one| one["owner"].as_str().expect("an owner"));
    owners.map(ToOwned::to_owned).collect()
}

/// The same, once there are so many: a waiter may have no place for a moment, if the machine stood
/// still.
pub(crate) async fn all_owners(url: &str, part: &str, number: usize) -> Vec<String> {
    let shown = async || owners(url, part).await;
    let what = format!("{url}: {number} in {part}");
    until(&what, shown, |owners| owners.len() == number).await
}

/// The others keep no queue: who waits there looks again and again.
pub(crate) fn shows_waiters(url: &str) -> bool {
    let unseen = ["memcached:", "redlock", "quorum=masters", "layout=redisson"];
    !unseen.iter().any(|part| url.contains(part))
}

/// The tokens in the list, once none of the holders is without.
async fn known_tokens(url: &str) -> Vec<String> {
    // Of others, whose keys begin with the same letter, the lease may not have ended yet.
    let listed = async || {
        let shown = stdout(&ran(dlock(url, &["ls", "k"])).await);
        let locks = column(&shown, "KEY")
            .into_iter()
            .zip(column(&shown, "TOKEN"));
        locks
            .filter_map(|(key, token)| (key == "k").then_some(token))
            .collect()
    };
    let is_known = |tokens: &Vec<String>| !tokens.is_empty() && !tokens.contains(&"-".to_owned());
    until("the tokens are known", listed, is_known).await
}

pub(crate) async fn waits(url: &str, before: usize) -> Program {
    let waiter = Program::start(dlock(url, &["run", "k", "--", "echo", "ran"]));
    all_owners(url, "queue", before + 1).await;
    waiter
}

/// What a store can do of it, and what it says of the rest.
pub(crate) async fn breaks(url: &str) {
    let free = ran(dlock(url, &["break", "k", "--yes"])).await;
    assert_eq!(code(&free), 0, "{url}: {}", stderr(&free));
    assert!(
        stderr(&free).contains("nobody holds it"),
        "{url}: {}",
        stderr(&free)
    );

    let (mut first, token) = holder(url, &TTL).await;
    let unasked = ran(dlock(url, &["break", "k"])).await;
    assert_eq!(code(&unasked), 64, "{url}: {}", stderr(&unasked));
    assert!(
        stderr(&unasked).contains("--yes"),
        "{url}: {}",
        stderr(&unasked)
    );
    // These keep no tokens of who holds a lock.
    let keeps_tokens = !(url.starts_with("memcached") || url.contains("layout=redisson"));
    if keeps_tokens {
        // On Redis, it is with the first renewal.
        assert_eq!(known_tokens(url).await, [&*token], "{url}");
    }
    let wrong = ran(dlock(url, &["break", "k", "--token", "1"])).await;
    let expected = if keeps_tokens { 75 } else { 78 };
    assert_eq!(code(&wrong), expected, "{url}: {}", stderr(&wrong));
    let stranger = ran(dlock(url, &["break", "k", "--holder", "somebody"])).await;
    assert_eq!(code(&stranger), 75, "{url}: {}", stderr(&stranger));
    let wide = stdout(&ran(dlock(url, &["show", "k"])).await);
    assert!(wide.contains("TOKEN"), "{url}: {wide}");
    let mut next = Program::start(dlock(url, &["run", "k", "--", "echo", "ran"]));
    if shows_waiters(url) {
        all_owners(url, "queue", 1).await;
    }
    let broken = if keeps_tokens {
        assert!(wide.contains(&format!(" {token} ")), "{url}: {wide}");
        ran(dlock(url, &["break", "k", "--token", &token])).await
    } else {
        assert!(
            stderr(&wrong).contains("token"),
            "{url}: {}",
            stderr(&wrong)
        );
        let owner = &all_owners(url, "holders", 1).await[0];
        ran(dlock(url, &["break", "k", "--holder", owner])).await
    };
    assert_eq!(code(&broken), 0, "{url}: {}", stderr(&broken));
    let said = stderr(&broken);
    assert!(
        said.contains("broken") && said.lines().count() == 1,
        "{url}: {said}"
    );
    assert_eq!(code(&within(HANG, next.end()).await), 0, "{url}");
    // It has lost it, and learns that.
    assert_eq!(code(&within(HANG, first.end()).await), 74, "{url}");

    let (mut second, _) = holder(url, &TTL).await;
    let broken = ran(dlock(url, &["break", "k", "--yes"])).await;
    assert_eq!(code(&broken), 0, "{url}: {}", stderr(&broken));
    assert_eq!(code(&within(HANG, second.end()).await), 74, "{url}");
}

/// Before its first renewal, Redis does not know it.
#[tokio::test]
async fn a_token_that_is_not_known_yet() {
    let server = redis().await;
    let url = server.url();
    // It is renewed after minutes.
    let (mut holder, token) = holder(&url, &["--ttl", "30m"]).await;
    let listed = stdout(&ran(dlock(&url, &["ls"])).await);
    assert_eq!(column(&listed, "TOKEN"), ["-"], "{listed}");
    for token in [&*token, "1"] {
        let early = ran(dlock(&url, &["break", "k", "--token", token])).await;
        assert_eq!(code(&early), 78, "{}", stderr(&early));
        let said = stderr(&early);
        assert!(
            said.contains("not yet") && said.contains("--holder"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(owners(&url, "holders").await.len(), 1);
    let broken = ran(dlock(&url, &["break", "k", "--yes"])).await;
    assert_eq!(code(&broken), 0, "{}", stderr(&broken));
    // Nobody has a token there.
    let gone = ran(dlock(&url, &["break", "k", "--token", &token])).await;
    assert_eq!(code(&gone), 0, "{}", stderr(&gone));
    holder.process.terminate();
    within(HANG, holder.end()).await;
}

/// Each of those who share a lock has a token of its own.
#[tokio::test]
async fn one_of_several_is_named_by_its_token() {
    let server = redis().await;
    let url = server.url();
    let (mut one, token) = holder(&url, &[&["--read"], &TTL[..]].concat()).await;
    let (mut other, kept) = holder(&url, &[&["--read"], &TTL[..]].concat()).await;
    let shown = async || {
        let mut tokens: Vec<String> = json(&url, &["show", "k"]).await[0]["holders"]
            .as_array()
            .expect("an array")
            .iter()
            .map(|holder| holder["token"].to_string())
            .collect();
        tokens.sort();
        tokens
    };
    let mut both = [token.clone(), kept.clone()];
    both.sort();
    until("both are known", shown, |tokens| *tokens == both).await;
    let broken = ran(dlock(&url, &["break", "k", "--token", &token])).await;
    assert_eq!(code(&broken), 0, "{}", stderr(&broken));
    assert_eq!(code(&within(HANG, one.end()).await), 74);
    assert_eq!(shown().await, [kept]);
    other.process.terminate();
    assert_eq!(code(&other.end().await), 143);
}

#[tokio::test]
async fn a_store_without_tokens_compares_none() {
    let server = Server::<Memcached>::start().await;
    let url = server.url();
    let (mut holder, token) = holder(&url, &[]).await;
    assert_eq!(token, "");
    let refused = ran(dlock(&url, &["break", "k", "--token", "1"])).await;
    assert_eq!(code(&refused), 78, "{}", stderr(&refused));
    let said = stderr(&refused);
    assert!(
        said.contains("no fencing tokens") && said.contains("--holder"),
        "{said}"
    );
    holder.process.terminate();
    assert_eq!(code(&holder.end().await), 143);
}

#[tokio::test]
async fn one_of_several_is_named() {
    let server = redis().await;
    let url = server.url();
    let (mut one, _) = holder(&url, &[&["--read"], &TTL[..]].concat()).await;
    let owner = &all_owners(&url, "holders", 1).await[0];
    let (mut other, _) = holder(&url, &["--read"]).await;
    let several = ran(dlock(&url, &["break", "k", "--yes"])).await;
    assert_eq!(code(&several), 64, "{}", stderr(&several));
    assert!(
        stderr(&several).contains("2 hold it"),
        "{}",
        stderr(&several)
    );
    let broken = ran(dlock(&url, &["break", "k", "--holder", owner])).await;
    assert_eq!(code(&broken), 0, "{}", stderr(&broken));
    assert_eq!(code(&within(HANG, one.end()).await), 74);
    assert_eq!(owners(&url, "holders").await.len(), 1);
    other.process.terminate();
    assert_eq!(code(&other.end().await), 143);
}

#[tokio::test]
async fn a_waiter_is_taken_out() {
    let server = redis().await;
    let url = server.url();
    let (mut holder, _) = holder(&url, &[]).await;
    let mut out = waits(&url, 0).await;
    let mut stays = waits(&url, 1).await;
    let queue = all_owners(&url, "queue", 2).await;
    let taken = ran(dlock(&url, &["break", "k", "--waiter", &queue[0]])).await;
    assert_eq!(code(&taken), 0, "{}", stderr(&taken));
    assert!(stderr(&taken).contains("taken out"), "{}", stderr(&taken));
    let told = within(HANG, out.end()).await;
    assert_eq!(code(&told), 75, "{}", stderr(&told));
    assert!(stderr(&told).contains("taken"), "{}", stderr(&told));
    assert_eq!(all_owners(&url, "queue", 1).await, queue[1..]);
    // It has not had the lock, like one that was busy.
    for (option, expected) in [(&["-E", "9"][..], 9), (&["--skip-ok"], 0)] {
        let arguments = [&["run"], option, &["k", "--", "echo", "ran"]].concat();
        let mut out = Program::start(dlock(&url, &arguments));
        let all = all_owners(&url, "queue", 2).await;
        let taken = ran(dlock(&url, &["break", "k", "--waiter", &all[1]])).await;
        assert_eq!(code(&taken), 0, "{}", stderr(&taken));
        let told = within(HANG, out.end()).await;
        assert_eq!(code(&told), expected, "{}", stderr(&told));
        assert_eq!(stderr(&told).is_empty(), expected == 0, "{}", stderr(&told));
    }
    let again = ran(dlock(&url, &["break", "k", "--waiter", &queue[0]])).await;
    assert!(
        stderr(&again).contains("nobody waits"),
        "{}",
        stderr(&again)
    );
    holder.process.terminate();
    assert_eq!(code(&holder.end().await), 143);
    assert_eq!(stdout(&within(HANG, stays.end()).await), "ran\n");
}

#[tokio::test]
async fn a_terminal_is_asked() {
    let server = redis().await;
    let url = server.url();
    let (mut holder, _) = holder(&url, &TTL).await;
    for (answer, exit) in [("\n", 75), ("n\n", 75), ("y\n", 0)] {
        let terminal = Terminal::with_tool(&["break", "k"], &server);
        terminal.shows("[y/N] ").await;
        terminal.types(answer);
        assert_eq!(terminal.ends(), Some(exit), "{answer:?}");
        all_owners(&url, "holders", usize::from(exit != 0)).await;
    }
    assert_eq!(code(&within(HANG, holder.end()).await), 74);
}
