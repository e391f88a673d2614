//! Arguments are dropped as in a plain function, and before the lock is given
//! back.

#![allow(clippy::too_many_arguments, clippy::unused_async)]

use std::sync::{Arc, Mutex};

use dlock::{LockError, distributed_lock};

use crate::support::alone;

type Log = Arc<Mutex<Vec<String>>>;

/// Notes its name, and whether the lock was held, when it is dropped.
struct Probe(&'static str, Log);

impl Drop for Probe {
    fn drop(&mut self) {
        let locked = if dlock::current().is_some() {
            "locked"
        } else {
            "free"
        };
        note(&self.1, format!("{} {locked}", self.0));
    }
}

struct Pair {
    first: Probe,
    second: Probe,
}

struct Owner(Probe, #[expect(dead_code)] Probe);

fn note(log: &Log, line: String) {
    log.lock().expect("no panic").push(line);
}

impl Owner {
    #[distributed_lock(key = "drop:<name>")]
    async fn locked(
        self,
        name: &str,
        #[allow(unused_variables)] unmentioned: Probe,
        _underscored: Probe,
        _: Probe,
        mut consumed: Vec<Probe>,
        pair: Pair,
        Pair {
            first,
            second: _second,
        }: Pair,
    ) -> Result<(), LockError> {
        let _local = Probe("local", Arc::clone(&first.1));
        consumed.clear();
        drop(pair.first);
        note(&self.0.1, format!("end of {name}"));
        Ok(())
    }

    /// A comment is an attribute too.
    #[distributed_lock(key = "boxed")]
    async fn boxed(self: Box<Self>, _: Probe) -> Result<(), LockError> {
        Ok(())
    }

    async fn plain(
        self,
        name: &str,
        _unmentioned: Probe,
        _underscored: Probe,
        _: Probe,
        mut consumed: Vec<Probe>,
        pair: Pair,
        Pair {
            first,
            second: _second,
        }: Pair,
    ) -> Result<(), LockError> {
        let _local = Probe("local", Arc::clone(&first.1));
        consumed.clear();
        drop(pair.first);
        note(&self.0.1, format!("end of {name}"));
        Ok(())
    }
}

macro_rules! call {
    ($method:ident, $log:ident) => {{
        let probe = |name| Probe(name, Arc::clone(&$log));
        Owner(probe("self.0"), probe("self.1")).$method(
            "body",
            probe("unmentioned"),
            probe("underscored"),
            probe("wild"),
            vec![probe("consumed")],
            Pair {
                first: probe("pair.first"),
                second: probe("pair.second"),
            },
            Pair {
                first: probe("first"),
                second: probe("second"),
            },
        )
    }};
}

fn lines(log: &Log) -> Vec<String> {
    log.lock().expect("no panic").clone()
}

#[tokio::test]
async fn as_a_plain_function_and_under_the_lock() {
    let (locked, plain) = (Log::default(), Log::default());
    alone(call!(locked, locked)).await.expect("it is free");
    call!(plain, plain).await.expect("nothing fails");
    let expected: Vec<_> = lines(&plain)
        .iter()
        .map(|line| line.replace("free", "locked"))
        .collect();
    assert_eq!(lines(&locked), expected);
    assert_eq!(expected.len(), 12);
}

#[tokio::test]
async fn a_boxed_self_too_and_what_has_no_name_below_a_comment() {
    let log = Log::default();
    let probe = |name| Probe(name, Arc::clone(&log));
    let owner = Box::new(Owner(probe("self.0"), probe("self.1")));
    alone(owner.boxed(probe("wild"))).await.expect("it is free");
    assert_eq!(
        lines(&log),
        ["wild locked", "self.0 locked", "self.1 locked"]
    );
}

/// An attribute below might look at what has no name.
#[distributed_lock(key = String::from(name))]
#[tracing::instrument(skip_all)]
#[allow(clippy::toplevel_ref_arg)]
async fn outliving(
    name: &str,
    _: Probe,
    (_inside, _): (Probe, Probe),
    ref _owner: Probe,
    _inside_too: Probe,
) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn what_outlives_the_lock() {
    let log = Log::default();
    let probe = |name| Probe(name, Arc::clone(&log));
    let pair = (probe("inside"), probe("unnamed"));
    let call = outliving(
        "a",
        probe("wild"),
        pair,
        probe("owner"),
        probe("inside too"),
    );
    alone(call).await.expect("it is free");
    let mut lines = lines(&log);
    lines.sort();
    assert_eq!(
        lines,
        [
            "inside locked",
            "inside too locked",
            "owner free",
            "unnamed free",
            "wild free"
        ]
    );
}

#[tokio::test]
async fn nothing_is_lost_when_the_lock_is_not_had() {
    let log = Log::default();
    let outcome = call!(locked, log).await;
    assert!(
        matches!(outcome, Err(LockError::NotInitialized { .. })),
        "{outcome:?}"
    );
    assert_eq!(lines(&log).len(), 10);
}
