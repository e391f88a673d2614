//! The second look: once a second, for as long as somebody waits, at what the
//! locks hold that are waited for.
//!
//! Waiters are told of a grant by a message, and a message can be lost; a holder
//! that dies sends none. One `MGET` for all the waiters of a process shows both.
//! With it goes, every three seconds, the sign that the process is alive. So
//! waiting costs the server less than two commands a second for each process,
//! however many wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;
use tokio_util::sync::CancellationToken;

use super::commands;
use super::connections::Lane;
use super::errors::{Remedy, remedy};
use super::shared::Shared;
use crate::backend::clock::Deadline;

const PERIOD: Duration = Duration::from_secs(1);

/// Well within the time for which the process counts as alive.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// After such a gap between two looks this process was paused or cut off, and
/// may have been taken for dead.
const GAP: Duration = Duration::from_secs(4);

/// Waits that follow each other closely keep the process alive in between.
const IDLE_ROUNDS: u32 = 2;

/// So many keys are asked for in one command: the server does nothing else
/// meanwhile.
const KEYS_AT_ONCE: usize = 1000;

/// Looks after the waiters until the backend stops.
pub(super) async fn keep_watch(shared: Arc<Shared>, lane: Arc<Lane>, stopping: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = shared.waiters.arrival() => {}
        }
        tokio::select! {
            biased;
            () = stopping.cancelled() => {}
            () = watch_while_somebody_waits(&shared, &lane) => {}
        }
        // The queues hold nobody of this process now, or soon.
        let farewell = commands::pipeline([commands::farewell(&shared.process.alive_key())]);
        if let Ok(connection) = lane.connection(patience(&shared)).await {
            let _ = connection.run_all(&farewell, patience(&shared)).await;
        }
        // Who came in the meantime may have been passed over as dead.
        shared.waiters.wake_all();
    }
}

async fn watch_while_somebody_waits(shared: &Shared, lane: &Lane) {
    let mut watch = Watch {
        shared,
        lane,
        heartbeat: Instant::now(),
        looked: Instant::now(),
    };
    // Only over a connection come messages. How it fails shows at the first
    // look.
    let _ = lane.connection(patience(shared)).await;
    let mut idle = 0;
    while idle < IDLE_ROUNDS {
        tokio::time::sleep(PERIOD).await;
        let keys = shared.waiters.keys();
        if keys.is_empty() {
            idle += 1;
            watch.looked = Instant::now();
        } else {
            idle = 0;
            watch.look(&keys).await;
        }
    }
}

struct Watch<'a> {
    shared: &'a Shared,
    lane: &'a Lane,
    heartbeat: Instant,
    looked: Instant,
}

impl Watch<'_> {
    async fn look(&mut self, keys: &[Arc<str>]) {
        let waiters = &self.shared.waiters;
        let Some((asked, values)) = self.ask(keys).await else {
            // No answer: each waiter now finds out for itself, and fails if
            // the outage lasts for the request timeout.
            waiters.wake_all();
            return;
        };
        waiters.heard(asked);
        let gap = asked.duration_since(self.looked);
        self.looked = asked;
        if gap >= GAP {
            waiters.wake_all();
            return;
        }
        for (key, value) in keys.iter().zip(&values) {
            let value = match value {
                Value::BulkString(value) => Some(value.as_slice()),
                // It is free, or of another type, which asking shows.
                _ => None,
            };
            waiters.look(key, value);
        }
    }

    /// What the locks hold, and when that was asked.
    async fn ask(&mut self, keys: &[Arc<str>]) -> Option<(Instant, Vec<Value>)> {
        let (shared, lane) = (self.shared, self.lane);
        let Shared {
            process, connector, ..
        } = shared;
        let connection = lane.connection(patience(shared)).await.ok()?;
        let asked = Instant::now();
        // Half a period early rather than a whole one late.
        let beats = asked.duration_since(self.heartbeat) + PERIOD / 2 >= HEARTBEAT;
        let heartbeat = beats.then(|| commands::heartbeat(&process.alive_key()));
        let looks = keys
            .chunks(KEYS_AT_ONCE)
            .map(|keys| commands::values(shared.space(), keys.iter().map(|key| &**key)));
        let commands = commands::pipeline(heartbeat.into_iter().chain(looks));
        let Ok(answers) = connection.run_all(&commands, patience(shared)).await else {
            lane.discard(&connection);
            return None;
        };
        let mut values = Vec::with_capacity(keys.len());
        for answer in answers {
            match answer {
                Value::Array(some) => values.extend(some),
                Value::ServerError(error) => {
                    if remedy(&error) == Remedy::Reconnect {
                        lane.discard(&connection);
                    }
                    let error = connector.place.refused(&error);
                    tracing::warn!(target: "dlock::store", "dlock cannot look after its waiters: {error}");
                    return None;
                }
                _ => {}
            }
        }
        if beats {
            self.heartbeat = asked;
        }
        Some((asked, values))
    }
}

fn patience(shared: &Shared) -> Deadline {
    Deadline::after(shared.connector.settings.patience())
}
