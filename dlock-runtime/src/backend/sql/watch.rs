//! What a backend does by itself for its waiters: it says that they are alive,
//! looks whether their turn has come, and cleans the tables.
//!
//! All of it is by process, not by waiter: one statement looks at every lock
//! that the process waits for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::driver::{Column, Message, News};
use super::script::Args;

/// How often a process with waiters says that it is alive.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// How often somebody cleans the tables.
pub(super) const CLEAN: Duration = Duration::from_secs(2);

/// How soon a waiter's turn is looked for where no messages come. The pause
/// grows with how long nothing has happened: those who wait for a lock that goes
/// from hand to hand look often, those who wait for a long job seldom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
}

/// Part of the time that has been waited already.
const PART: u32 = 6;

impl Pace {
    fn pause(self, calm: Duration) -> Duration {
        (calm / PART)
            .clamp(self.shortest, self.longest)
            .mul_f64(0.75 + fastrand::f64() / 2.0)
    }
}

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
    let _ = core.driver.run(&script, &[]).await;
    // Who came in the meantime may have been passed over as dead.
    core.waiters.wake_all();
}

async fn watch_while_somebody_waits(core: &Core) {
    let mut idle_since = None;
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
        let due = core.next_beat();
        if due <= now {
            beat(core).await;
            continue;
        }
        let pause = match (core.hears(), idle_since) {
            (true, _) | (_, Some(_)) => BEAT,
            (false, None) => core.pace.pause(core.waiters.calm()),
        };
        let woken = core.waiters.arrival();
        tokio::select! {
            () = tokio::time::sleep(pause.min(due - now)) => {}
            () = woken => continue,
        }
        if !core.waiters.is_empty() {
            look(core).await;
        }
    }
}

async fn beat(core: &Core) {
    let expected = core.waiters.queued();
    let sent = Instant::now();
    let script = core.scripts.beat(&core.args());
    match core.driver.run(&script, &[Column::Int]).await {
        Ok(answer) => {
            let gap = core.beats(sent);
            let places = answer.rows.first().map_or(0, |row| row.int(0));
            // Places have been lost, or others took this process for dead.
            if gap || usize::try_from(places).unwrap_or(0) < expected {
                core.waiters.wake_all();
            }
        }
        Err(error) => {
            core.misses_beat(sent);
            silent(core, &error);
        }
    }
}

async fn look(core: &Core) {
    let script = core.scripts.look(&core.args());
    match core.driver.run(&script, &[Column::Text]).await {
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

/// Hears of locks that have become free.
pub(super) async fn listen(core: Arc<Core>, mut news: News) {
    while let Some(message) = news.messages.recv().await {
        match message {
            Message::Free(key) => core.waiters.wake_key(&key),
            Message::Missed => core.waiters.wake_all(),
        }
    }
}

/// Removes what nobody needs any more, while there is something: one process
/// for all, as a rule.
pub(super) async fn keep_clean(core: Arc<Core>, stopping: CancellationToken) {
    let clean = async {
        loop {
            core.used().await;
            while tables_hold_something(&core).await {
                let pause = CLEAN.mul_f64(1.0 + fastrand::f64() / 2.0);
                tokio::time::sleep(pause).await;
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
    let columns = &[Column::Int, Column::Int];
    let state = core.driver.run(&core.scripts.is_clean(), columns).await;
    let Ok(state) = state else { return true };
    let Some(state) = state.rows.first() else {
        return true;
    };
    if state.int(0) == 1 {
        match core
            .driver
            .run(&core.scripts.clean(), &[Column::Text])
            .await
        {
            Ok(answer) => {
                for row in &answer.rows {
                    // Perhaps the dead alone wait for it.
                    let script = core.scripts.leave(&Args {
                        key: row.text(0),
                        ..core.args()
                    });
                    let _ = core.driver.run(&script, &[Column::Int]).await;
                }
            }
            Err(error) => {
                tracing::debug!(target: "dlock::store", "dlock cannot clean its tables: {error}");
            }
        }
    }
    state.int(1) > 0
}
