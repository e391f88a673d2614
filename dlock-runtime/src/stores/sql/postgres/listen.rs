//! Listens for notifications of free locks.
//!
//! Whether notifications come through has to be tried: behind a pooler that gives every transaction
//! another session, `LISTEN` succeeds and nothing ever arrives
//! (<https://www.pgbouncer.org/features.html>).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sqlx::postgres::{PgListener, PgNotification};

use super::PostgresDatabase;
use crate::outlast::outlast;
use crate::stores::sql::connections::Priority;
use crate::stores::sql::tables::Tables;
use crate::stores::sql::work::Work;
use crate::stores::stored_owner::StoredOwner;

/// How long a notification that this process sends to itself may take.
const ECHO: Duration = Duration::from_secs(2);

/// After this long without a notification, the connection is tried again: a firewall that has
/// forgotten an idle connection tells nobody.
const QUIET: Duration = Duration::from_secs(10);

/// The payload of a notification to this process itself. No key is empty.
const TO_ONESELF: &str = "";

/// The pauses before listening is tried again: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));

/// After this many notifications to itself, in a row, that did not arrive, none will. A single one
/// may only be late.
const SURE: u32 = 3;

/// It could not be tried whether notifications come through.
struct NotTried;

/// Listens until it is dropped.
pub(super) async fn listen(tables: Arc<Tables<PostgresDatabase>>) {
    let (first, longest) = PAUSES;
    let mut pause = first;
    let mut unheard = 0;
    loop {
        // The driver panics over some answers that make no sense.
        let ended = AssertUnwindSafe(hear(&tables)).catch_unwind().await;
        let ended = ended.unwrap_or_else(|_| {
            tables.notifications_come(false);
            Err(NotTried)
        });
        match ended {
            // Notifications came through until an outage, which is usually short.
            Ok(true) => (pause, unheard) = (first, 0),
            Ok(false) => {
                unheard += 1;
                if unheard == SURE {
                    outlast(|| {
                        tracing::info!(
                            target: "dlock::store",
                            "{}: notifications do not come through, as behind a pooler in \
                             transaction mode; dlock looks for free locks instead",
                            tables.endpoint
                        );
                    });
                }
                pause = (4 * pause).min(longest);
            }
            Err(_) => pause = (2 * pause).min(Duration::from_secs(5)),
        }
        let time = &tables.time;
        time.sleep(time.after(time.jitter(pause))).await;
    }
}

/// Listens over one connection, until it breaks or is given up. Returns whether notifications came
/// through.
async fn hear(tables: &Tables<PostgresDatabase>) -> Result<bool, NotTried> {
    let limit = tables.endpoint.request_timeout;
    let listening = async {
        // A pool for each connection: a listener gives its connection back only after one more
        // answer, which never comes if the connection was forgotten on the way (`PgListener::drop`
        // in `sqlx-postgres` 0.8.6).
        let pool = tables.config.opener(limit);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(&channel(tables)).await?;
        Ok::<_, sqlx::Error>(listener)
    };
    let listener = tokio::time::timeout(limit, listening).await;
    let Ok(Ok(mut listener)) = listener else {
        return Err(NotTried);
    };
    if !echoes(tables, &mut listener).await? {
        return Ok(false);
    }
    tables.notifications_come(true);
    loop {
        match tokio::time::timeout(QUIET, listener.try_recv()).await {
            Ok(Ok(Some(message))) => pass_on(tables, &message),
            Ok(_) => break,
            Err(_) if matches!(echoes(tables, &mut listener).await, Ok(true)) => {}
            Err(_) => break,
        }
    }
    tables.notifications_come(false);
    Ok(true)
}

/// Sends a notification to this process itself, and returns whether one arrives.
async fn echoes(
    tables: &Tables<PostgresDatabase>,
    listener: &mut PgListener,
) -> Result<bool, NotTried> {
    let notify = format!("SELECT pg_notify('{}', '{TO_ONESELF}')", channel(tables));
    let limit = tables.time.after(tables.endpoint.request_timeout);
    let work = Work::Script(&notify, 0);
    let said = tables.answer(work, Priority::InTurn, limit).await;
    said.map_err(|_| NotTried)?;
    match tokio::time::timeout(ECHO, listener.try_recv()).await {
        Ok(Ok(Some(message))) => {
            pass_on(tables, &message);
            Ok(true)
        }
        Ok(_) => Err(NotTried),
        Err(_) => Ok(false),
    }
}

fn pass_on(tables: &Tables<PostgresDatabase>, message: &PgNotification) {
    let payload = message.payload();
    let of_one = payload.split_once('\t');
    let of_one = of_one.and_then(|(stored, key)| Some((StoredOwner::read(stored)?.owner, key)));
    if let Some((owner, key)) = of_one {
        tables.events.freed_for(owner, key);
    } else if payload != TO_ONESELF {
        tables.events.freed(payload);
    }
}

fn channel(tables: &Tables<PostgresDatabase>) -> String {
    format!("dlock_{}", tables.process)
}
