//! Hearing of locks that have become free.
//!
//! Whether messages come through is tried: behind a pooler that gives every
//! transaction another session, `LISTEN` succeeds and nothing is ever heard.

use std::time::Duration;

use sqlx::Pool;
use sqlx::postgres::{PgListener, PgNotification};

use crate::stores::sql::notifications::Notifications;

/// How soon a message that is sent to oneself has to come.
const ECHO: Duration = Duration::from_secs(2);

/// A connection that has said nothing for so long is tried again: who forgets
/// one that is idle, as a firewall does, tells nobody.
const QUIET: Duration = Duration::from_secs(10);

/// The message to oneself: no key is empty.
const TO_ONESELF: &str = "";

/// How long to wait before it is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));

/// Listens until it is dropped.
pub(super) async fn listen(
    listening: Pool<sqlx::Postgres>,
    talking: Pool<sqlx::Postgres>,
    notifications: Notifications,
) {
    let listener = Listener {
        listening,
        talking,
        channel: format!("dlock_{}", notifications.process),
        notifications,
    };
    listener.listen().await;
}

struct Listener {
    listening: Pool<sqlx::Postgres>,
    talking: Pool<sqlx::Postgres>,
    channel: String,
    notifications: Notifications,
}

impl Listener {
    async fn listen(&self) {
        let (first, longest) = PAUSES;
        let mut pause = first;
        loop {
            match self.hear().await {
                // It did work: an outage, as a rule a short one.
                Ok(()) => pause = first,
                Err(Disconnected::NotConnected) => pause = (2 * pause).min(Duration::from_secs(5)),
                Err(Disconnected::NothingComes) => {
                    if pause < longest {
                        tracing::info!(
                            target: "dlock::store",
                            "{}: notifications do not come through, as behind a pooler in \
                             transaction mode; dlock looks for free locks instead",
                            self.notifications.endpoint
                        );
                    }
                    pause = longest;
                }
            }
            tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        }
    }

    /// Hears until the connection breaks, or carries nothing any more.
    async fn hear(&self) -> Result<(), Disconnected> {
        let limit = self.notifications.endpoint.request_timeout;
        let begun = tokio::time::timeout(limit, self.begin()).await;
        let mut listener = begun.map_err(|_| Disconnected::NotConnected)??;
        if !self.echoes(&mut listener).await? {
            return Err(Disconnected::NothingComes);
        }
        self.notifications.come(true);
        loop {
            match tokio::time::timeout(QUIET, listener.try_recv()).await {
                Ok(Ok(Some(message))) => self.pass_on(&message),
                Ok(_) => break,
                Err(_) if matches!(self.echoes(&mut listener).await, Ok(true)) => {}
                Err(_) => break,
            }
        }
        self.notifications.come(false);
        Ok(())
    }

    async fn begin(&self) -> Result<PgListener, Disconnected> {
        // A pool for each: a listener gives its connection back only when that
        // has answered once more, which one that is forgotten never does.
        let options = (*self.listening.connect_options()).clone();
        let pool = self.listening.options().clone().connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool)
            .await
            .map_err(not_connected)?;
        listener.eager_reconnect(false);
        let listening = listener.listen(&self.channel).await;
        listening.map_err(not_connected)?;
        Ok(listener)
    }

    /// Whether something comes, if something is said.
    async fn echoes(&self, listener: &mut PgListener) -> Result<bool, Disconnected> {
        let notify = format!("SELECT pg_notify('{}', '{TO_ONESELF}')", self.channel);
        let mut talking = self.talking.acquire().await.map_err(not_connected)?;
        let said = sqlx::Executor::execute(&mut *talking, sqlx::raw_sql(&notify));
        let Ok(said) =
            tokio::time::timeout(self.notifications.endpoint.request_timeout, said).await
        else {
            talking.close_on_drop();
            return Err(Disconnected::NotConnected);
        };
        said.map_err(not_connected)?;
        drop(talking);
        match tokio::time::timeout(ECHO, listener.try_recv()).await {
            Ok(Ok(Some(message))) => {
                self.pass_on(&message);
                Ok(true)
            }
            Ok(_) => Err(Disconnected::NotConnected),
            Err(_) => Ok(false),
        }
    }

    fn pass_on(&self, message: &PgNotification) {
        if message.payload() != TO_ONESELF {
            self.notifications.events.freed(message.payload());
        }
    }
}

fn not_connected(_: sqlx::Error) -> Disconnected {
    Disconnected::NotConnected
}

enum Disconnected {
    NotConnected,
    NothingComes,
}
