//! The table of one store: dlock beside one other way to lock there.

#[path = "table/contest.rs"]
pub(crate) mod contest;
#[allow(dead_code, reason = "the table of Redis uses more of it")]
#[path = "table/spread.rs"]
pub(crate) mod spread;

use std::time::Duration;

use contest::{Turn, take_turns, turn};
use dlock_benches::{Dlock, Locker};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
    /// Sections whose writes are counted, where the store counts them.
    #[allow(dead_code, reason = "not every store does")]
    pub(crate) sections: u32,
}

impl Effort {
    /// All of it in slices of this length if the program was started to measure,
    /// and else enough to see that everything works.
    pub(crate) fn asked_for(slice: Duration) -> Self {
        if std::env::args().any(|argument| argument == "--bench") {
            Self {
                rounds: 48,
                slice,
                sections: 500,
            }
        } else {
            Self {
                rounds: 1,
                slice: Duration::from_millis(5),
                sections: 20,
            }
        }
    }
}

/// Whether the other one can be contended for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each table has one or the other")]
pub(crate) enum Other {
    Waits,
    /// Beside many tasks on one key is one that nobody contends for.
    DoesNotWait,
}

/// One task, as many as there are keys, and as many on one key: prints the rate
/// of each and their ratio.
pub(crate) async fn compare<L: Locker>(
    dlock: &Dlock,
    other: &L,
    waits: Other,
    effort: &Effort,
    tasks: usize,
) {
    let name = L::NAME;
    let keys = headed(name, tasks);
    let one = vec![keys[0]; tasks];
    let (hot, beside) = match waits {
        Other::Waits => (format!("{tasks} tasks, one key"), &one[..]),
        Other::DoesNotWait => {
            let work = format!("{tasks} tasks, one key ({name}: 1 task)");
            (work, &keys[..1])
        }
    };
    for (work, ours, theirs) in [
        ("1 task".to_owned(), &keys[..1], &keys[..1]),
        (format!("{tasks} tasks, {tasks} keys"), keys, keys),
        (hot, &one[..], beside),
    ] {
        let turns = [turn(dlock, effort, ours), turn(other, effort, theirs)];
        show(&work, effort, &turns).await;
    }
}

/// One task, and as many as there are keys, beside a program that is told how many tasks
/// it has.
#[allow(dead_code, reason = "not each table has one")]
pub(crate) async fn compare_with_program<'a>(
    dlock: &'a Dlock,
    name: &str,
    runs: impl Fn(usize) -> Turn<'a>,
    effort: &'a Effort,
    tasks: usize,
) {
    let keys = headed(name, tasks);
    for (work, keys) in [
        ("1 task".to_owned(), &keys[..1]),
        (format!("{tasks} tasks, {tasks} keys"), keys),
    ] {
        show(
            &work,
            effort,
            &[turn(dlock, effort, keys), runs(keys.len())],
        )
        .await;
    }
}

/// Prints the head of a table: a key for each task.
fn headed(name: &str, tasks: usize) -> &'static [&'static str] {
    println!("| work | dlock | {name} | dlock ÷ {name} (quartiles) |");
    println!("| --- | --- | --- | --- |");
    let keys = (0..tasks).map(|key| &*format!("key:{key}").leak());
    keys.collect::<Vec<_>>().leak()
}

async fn show(work: &str, effort: &Effort, turns: &[Turn<'_>]) {
    let rates = take_turns(effort, turns).await;
    let [ours, theirs] = [0, 1].map(|who| rates.of(who).median());
    let ratio = rates.first_beside(1);
    println!("| {work} | {ours:.0}/s | {theirs:.0}/s | {ratio} |");
}
