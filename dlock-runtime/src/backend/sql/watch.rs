//! What a backend does by itself for its waiters: it says that they are alive,
//! looks whether their turn has come, and cleans the tables.
//!
//! All of it is by process, not by waiter: one statement looks at every lock
//! that the process waits for.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::driver::{Column, Message, News, Row};
use super::pace::{BEAT, CLEAN};
use super::script::Args;

/// Looks after the waiters until the backend stops.
pub(super) async fn keep_watch(core: Arc<Core>, stopping: CancellationToken) {
    let watch = async {
        loop {
            if core.waiters.is_empty() {
                core.waiters.arrival().await;
                continue;
            }
            watch_while_somebody_waits(&core).await;
            // The queues hold nobody of this process now, or soon.
            farewell(&core).await;
        }
    };
    tokio::select! {
        biased;
        () = stopping.cancelled() => {}
        () = watch => {}
    }
}

async fn farewell(core: &Core) {
    core.forget_beat();
    let script = core.scripts.farewell(&Args {
        process: &core.process,
        ..Args::default()
    });
    let _ = core.run(&script, &[]).await;
    // Who came in the meantime may have been passed over as dead.
    core.waiters.wake_all();
}

async fn watch_while_somebody_waits(core: &Arc<Core>) {
    let mut idle_since = None;
    let came = Instant::now();
    let mut looked = came;
    let mut strangers = HashSet::new();
    loop {
        let now = Instant::now();
        if core.waiters.is_empty() {
            // Waits that follow each other closely keep the process alive in
            // between.
            if now.duration_since(*idle_since.get_or_insert(now)) >= 2 * BEAT {
                return;
            }
        } else {
            idle_since = None;
        }
        if core.next_beat(came) <= now {
            beat(core, &mut strangers).await;
        }
        let pause = match (core.hears(), idle_since) {
            (true, _) | (_, Some(_)) => BEAT,
            (false, None) => core.pace.pause(core.waiters.calm()),
        };
        // From the last look: who comes meanwhile may bring it forward, and puts
        // it off for nobody.
        let due = looked + pause;
        if due <= Instant::now() {
            if !core.waiters.is_empty() {
                look(core).await;
            }
            looked = Instant::now();
            continue;
        }
        let woken = core.waiters.arrival();
        tokio::select! {
            () = tokio::time::sleep_until(due.min(core.next_beat(came)).into()) => {}
            () = woken => {}
        }
    }
}

/// `strangers` have a place in a queue and nobody here who waits for it, as of
/// the last beat.
async fn beat(core: &Arc<Core>, strangers: &mut HashSet<String>) {
    let queued = core.waiters.queued();
    let sent = Instant::now();
    let script = core.scripts.beat(&core.args());
    match core.run(&script, &[Column::Text, Column::Text]).await {
        Ok(answer) => {
            let places: HashSet<&str> = answer.rows.iter().map(|row| row.text(0)).collect();
            if core.beats(sent) {
                // Others may have taken this process for dead.
                core.waiters.wake_all();
            }
            for owner in queued.iter().filter(|owner| !places.contains(&***owner)) {
                // Its place was lost.
                core.waiters.wake(owner);
            }
            let (left, unknown): (Vec<_>, Vec<_>) = answer
                .rows
                .into_iter()
                .filter(|row| !core.waiters.knows(row.text(0)))
                .partition(|row| strangers.contains(row.text(0)));
            *strangers = unknown.iter().map(|row| row.text(0).to_owned()).collect();
            give_up_places(core, left);
        }
        Err(error) => {
            core.misses_beat(sent);
            silent(core, &error);
        }
    }
}

/// Leaves the queues for those who have left: they could not do it themselves,
/// in an outage, and as long as this process lives nobody else does.
///
/// Nobody of this process who has just come is among them: whoever was not known
/// at a beat had come before it, as it had a place; so it had ended too. Those of
/// a clone of this process may be, and may have been granted the lock since: they
/// lose their place at most, and ask for another one.
fn give_up_places(core: &Arc<Core>, places: Vec<Row>) {
    if places.is_empty() {
        return;
    }
    let this = Arc::clone(core);
    core.run_behind(|unsettled| async move {
        let _unsettled = unsettled;
        for place in places {
            let script = this.scripts.give_up(&Args {
                owner: place.text(0),
                key: place.text(1),
                ..this.args()
            });
            if this.run(&script, &[]).await.is_err() {
                // They show at the next beat.
                return;
            }
        }
    });
}

async fn look(core: &Core) {
    let script = core.scripts.look(&core.args());
    match core.run(&script, &[Column::Text]).await {
        Ok(answer) => {
            for row in &answer.rows {
                core.waiters.wake(row.text(0));
            }
        }
        Err(error) => silent(core, &error),
    }
}

/// Each waiter now finds out for itself, and fails if the outage lasts for the
/// request timeout.
fn silent(core: &Core, error: &crate::backend::BackendError) {
    tracing::debug!(target: "dlock::store", "dlock cannot look after its waiters: {error}");
    core.waiters.wake_all();
}

/// Hears of locks that have become free. The connection that listens ends with
/// it.
pub(super) async fn listen(core: Arc<Core>, mut news: News, stopping: CancellationToken) {
    let hear = async {
        while let Some(message) = news.messages.recv().await {
            match message {
                Message::Free(key) => core.waiters.wake_key(&key),
                Message::Missed => core.waiters.wake_all(),
            }
        }
    };
    tokio::select! {
        biased;
        () = stopping.cancelled() => {}
        () = hear => {}
    }
}

/// Removes what nobody needs any more, while there is something: one process
/// for all, as a rule.
pub(super) async fn keep_clean(core: Arc<Core>, stopping: CancellationToken) {
    let clean = async {
        loop {
            tokio::select! {
                biased;
                () = core.over.cancelled() => return,
                () = core.used() => {}
            }
            while tables_hold_something(&core).await {
                let pause = CLEAN.mul_f64(1.0 + fastrand::f64() / 2.0);
                tokio::select! {
                    biased;
                    () = core.over.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = stopping.cancelled() => {}
        () = clean => {}
    }
}

async fn tables_hold_something(core: &Core) -> bool {
    let _in_flight = core.unsettled.count();
    let columns = &[Column::Int, Column::Int];
    let state = core.run(&core.scripts.is_clean(), columns).await;
    let Ok(state) = state else { return true };
    let Some(state) = state.rows.first() else {
        return true;
    };
    if state.int(0) == 1 {
        match core.run(&core.scripts.clean(), &[Column::Text]).await {
            Ok(answer) => {
                for row in &answer.rows {
                    // Perhaps the dead alone wait for it.
                    let script = core.scripts.give_up(&Args {
                        key: row.text(0),
                        ..core.args()
                    });
                    let _ = core.run(&script, &[]).await;
                }
            }
            Err(error) => {
                tracing::debug!(target: "dlock::store", "dlock cannot clean its tables: {error}");
            }
        }
    }
    state.int(1) > 0
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use async_trait::async_trait;

    use super::*;
    use crate::backend::BackendError;
    use crate::backend::sql::driver::{Answer, Driver, Outcome};
    use crate::backend::sql::durability::Durability;
    use crate::backend::sql::opened::Opened;
    use crate::backend::sql::pace::Pace;
    use crate::backend::sql::pooled::Place;
    use crate::backend::sql::script::Dialect;
    use crate::backend::sql::start::start;

    /// Has nothing to say, and counts what it is asked.
    #[derive(Debug, Default)]
    struct Counts {
        looks: AtomicUsize,
        beats: AtomicUsize,
    }

    #[async_trait]
    impl Driver for Counts {
        async fn run(
            &self,
            script: &str,
            _: &'static [Column],
            _: Instant,
        ) -> Result<Answer, BackendError> {
            if script.starts_with("SELECT q.owner") {
                self.looks.fetch_add(1, Relaxed);
            } else if script.starts_with("alive") {
                self.beats.fetch_add(1, Relaxed);
            }
            Ok(Answer {
                rows: Vec::new(),
                sent_at: Instant::now(),
                repeated: false,
            })
        }

        async fn run_in_time(
            &self,
            script: &str,
            columns: &'static [Column],
            deadline: Instant,
        ) -> Result<Outcome, BackendError> {
            let answer = self.run(script, columns, deadline).await;
            answer.map(Outcome::Answered)
        }

        fn always_answers(&self) -> bool {
            false
        }

        async fn rest(&self) {}

        async fn close(&self) {}
    }

    const DIALECT: Dialect = Dialect {
        begin: "",
        begin_lease: "",
        begin_grant: "",
        durable: "1",
        durable_tables: "1",
        durable_with: "",
        commit: "",
        now: "now",
        lock: "",
        take: "",
        free: "",
        alive: "alive",
        wake: "",
        text: |out, text| out.push_str(text),
    };

    /// However closely waiters follow each other, those who are there are told of
    /// free locks.
    #[tokio::test]
    async fn arrivals_put_no_look_off() {
        let counts = Arc::new(Counts::default());
        let pause = Duration::from_millis(50);
        let place = Place {
            name: "a database".to_owned(),
            request_timeout: BEAT,
        };
        let opened = Opened {
            driver: Arc::clone(&counts) as Arc<dyn Driver>,
            dialect: &DIALECT,
            durability: Durability::unknown(place, &DIALECT),
            pace: Pace {
                shortest: pause,
                longest: pause,
            },
            news: None,
        };
        let core = start(opened, "process".to_owned(), BEAT);
        let core = core.expect("a runtime");
        let mut waiting = Vec::new();
        let asked = || (counts.looks.load(Relaxed), counts.beats.load(Relaxed));
        while asked().0 + asked().1 < 8 {
            let owner = format!("owner.{}", waiting.len()).into();
            waiting.push(core.waiters.enter(&"key".into(), &owner));
            tokio::time::sleep(pause / 10).await;
        }
        let (looks, beats) = asked();
        assert!(looks > beats, "{looks} looks and {beats} beats");
        drop(waiting);
        core.stop().await;
    }
}
