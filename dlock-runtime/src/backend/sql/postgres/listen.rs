//! Hearing of locks that have become free.
//!
//! Whether messages come through is tried: behind a pooler that gives every
//! transaction another session, `LISTEN` succeeds and nothing is ever heard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::Pool;
use sqlx::postgres::PgListener;
use tokio::sync::mpsc;

use crate::backend::sql::driver::{Message, News};
use crate::backend::sql::pooled::Place;

/// How soon a message that is sent to oneself has to come.
const ECHO: Duration = Duration::from_secs(2);

/// The message to oneself: no key is empty.
const TO_ONESELF: &str = "";

/// How long to wait before it is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));

/// Listens until nobody wants to hear.
pub(super) fn start(
    listening: Pool<sqlx::Postgres>,
    talking: Pool<sqlx::Postgres>,
    channel: String,
    place: Place,
) -> News {
    let (tell, messages) = mpsc::unbounded_channel();
    let come = Arc::new(AtomicBool::new(false));
    let ear = Ear {
        listening,
        talking,
        channel,
        place,
        tell,
        come: Arc::clone(&come),
    };
    tokio::spawn(async move {
        tokio::select! {
            () = ear.tell.closed() => {}
            () = ear.listen() => {}
        }
        ear.listening.close().await;
    });
    News { messages, come }
}

struct Ear {
    listening: Pool<sqlx::Postgres>,
    talking: Pool<sqlx::Postgres>,
    channel: String,
    place: Place,
    tell: mpsc::UnboundedSender<Message>,
    come: Arc<AtomicBool>,
}

impl Ear {
    async fn listen(&self) {
        let (first, longest) = PAUSES;
        let mut pause = first;
        loop {
            match self.hear().await {
                // It did work: an outage, as a rule a short one.
                Ok(()) => pause = first,
                Err(Deaf::NotConnected) => pause = (2 * pause).min(Duration::from_secs(5)),
                Err(Deaf::NothingComes) => {
                    if pause < longest {
                        tracing::info!(
                            target: "dlock::store",
                            "{}: notifications do not come through, as behind a pooler in \
                             transaction mode; dlock looks for free locks instead",
                            self.place
                        );
                    }
                    pause = longest;
                }
            }
            tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        }
    }

    /// Hears until the connection breaks.
    async fn hear(&self) -> Result<(), Deaf> {
        let lost = |_| Deaf::NotConnected;
        let mut listener = PgListener::connect_with(&self.listening)
            .await
            .map_err(lost)?;
        listener.eager_reconnect(false);
        listener.listen(&self.channel).await.map_err(lost)?;
        let notify = format!("SELECT pg_notify('{}', '{TO_ONESELF}')", self.channel);
        sqlx::Executor::execute(&self.talking, sqlx::raw_sql(&notify))
            .await
            .map_err(lost)?;
        let echo = tokio::time::timeout(ECHO, listener.try_recv());
        match echo.await {
            Ok(Ok(Some(_))) => {}
            Ok(_) => return Err(Deaf::NotConnected),
            Err(_) => return Err(Deaf::NothingComes),
        }
        self.come.store(true, Ordering::Relaxed);
        // Whatever was said before this.
        let _ = self.tell.send(Message::Missed);
        while let Ok(Some(message)) = listener.try_recv().await {
            let _ = self.tell.send(Message::Free(message.payload().to_owned()));
        }
        self.come.store(false, Ordering::Relaxed);
        let _ = self.tell.send(Message::Missed);
        Ok(())
    }
}

enum Deaf {
    NotConnected,
    NothingComes,
}
