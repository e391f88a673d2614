//! The second look, in a cluster: once a second at what each lock holds that is
//! waited for. A message can be lost, and a holder that dies sends none.
//!
//! Locks are in slots of their own, and one command cannot ask for two of them.
//! So it is one command a second for each lock that is waited for, however many
//! wait for it; those of one node go out together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio_util::sync::CancellationToken;

use super::super::call::Answer;
use super::super::commands;
use super::super::server_connections::Side;
use super::super::shared::Shared;
use super::ears::Ears;
use crate::backend::BackendError;
use crate::backend::clock::Deadline;

const PERIOD: Duration = Duration::from_secs(1);

/// Well within the time for which the process counts as alive.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// After such a gap between two looks this process was paused, and may have been
/// taken for dead.
const GAP: Duration = Duration::from_secs(4);

/// Looks after the waiters until the backend stops.
pub(super) async fn keep_watch(shared: Arc<Shared>, ears: Arc<Ears>, stopping: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = shared.waiters.arrival() => {}
        }
        tokio::select! {
            biased;
            () = stopping.cancelled() => {}
            () = watch_while_somebody_waits(&shared, &ears) => {}
        }
    }
}

async fn watch_while_somebody_waits(shared: &Shared, ears: &Ears) {
    let (mut heartbeat, mut looked) = (Instant::now(), Instant::now());
    loop {
        tokio::time::sleep(PERIOD).await;
        let now = Instant::now();
        let beats = now.duration_since(heartbeat) + PERIOD / 2 >= HEARTBEAT;
        if beats {
            heartbeat = now;
        }
        let keys = shared.waiters.keys();
        if now.duration_since(looked) >= GAP {
            shared.waiters.wake_all();
        }
        looked = now;
        look(shared, &keys, beats).await;
        forget(shared, ears.sweep()).await;
        if keys.is_empty() && ears.is_empty() {
            return;
        }
    }
}

/// Looks at the locks, and says that their waiters are alive. A node that does
/// not answer must not keep the others from being looked at.
async fn look(shared: &Shared, keys: &[Arc<str>], beats: bool) {
    let asked = Instant::now();
    let space = shared.space();
    let looks = keys.iter().map(|key| async move {
        let get = ask(shared, key, || commands::value(space, key));
        let alive = async {
            if beats {
                let alive = space.alive_key(shared.process, key);
                let _ = ask(shared, key, || commands::heartbeat(&alive)).await;
            }
        };
        let (answer, ()) = tokio::join!(get, alive);
        (key, answer)
    });
    let mut looks: FuturesUnordered<_> = looks.collect();
    let mut complained = false;
    while let Some((key, answer)) = looks.next().await {
        match answer.map(|answer| answer.value) {
            Ok(Value::BulkString(value)) => {
                shared.waiters.heard(asked);
                shared.waiters.look(key, Some(&value));
            }
            // It is free.
            Ok(_) => {
                shared.waiters.heard(asked);
                shared.waiters.look(key, None);
            }
            // Its waiters now find out for themselves, and fail if the outage
            // lasts for the request timeout.
            Err(error) => {
                shared.waiters.wake(key);
                if !std::mem::replace(&mut complained, true) {
                    tracing::debug!(
                        target: "dlock::store",
                        "dlock cannot look after its waiters: {error}"
                    );
                }
            }
        }
    }
}

/// Nobody in this process waits for these locks any more.
async fn forget(shared: &Shared, keys: Vec<Arc<str>>) {
    let farewells = keys.iter().map(|key| async move {
        let alive = shared.space().alive_key(shared.process, key);
        let _ = ask(shared, key, || commands::farewell(&alive)).await;
    });
    let farewells: FuturesUnordered<_> = farewells.collect();
    farewells.collect::<()>().await;
    for key in &keys {
        // Who came in the meantime may have been passed over as dead.
        shared.waiters.wake(key);
    }
}

async fn ask(
    shared: &Shared,
    key: &str,
    command: impl Fn() -> redis::Cmd,
) -> Result<Answer, BackendError> {
    let mut call = shared.call(Side::Manager, key)?;
    let patience = shared.connector.settings.patience().min(PERIOD);
    call.restart(Instant::now(), Deadline::after(patience));
    call.ask(key, |_| command()).await
}
