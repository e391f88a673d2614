//! The scripts of one operation: what the engine asks of a database.
//!
//! A free lock that nobody waits for is taken by a script of its own, `take.sql`.
//! Everything else is one script, `acquire.sql`. Either may be asked twice for one
//! owner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clean;
use super::database::Database;
use super::inspect;
use super::pooled::Priority;
use super::rows::{Answer, Column};
use super::script::{ALIVE, Args, Asks, patience};
use super::tables::{Exchange, Tables};
use super::watch::{self, Seen, Strangers};
use crate::backend::{
    BackendError, Capabilities, LockInfo, Mode, Renewed, Request, Servers, TokenTier,
};
use crate::deadline::Deadline;
use crate::store::{
    Abandoned, Applied, Cause, Context, Due, Ending, Failure, Followed, Freed, Granted, Late,
    LeftBehind, Looks, Next, Opening, Store, Take, Waited, Want,
};

/// Who is told when it is its turn looks as often.
const LOOK: Duration = Duration::from_secs(1);

/// A database, and what this process does in it.
pub(crate) struct SqlStore<D: Database> {
    tables: Arc<Tables<D>>,
    strangers: Strangers,
    context: Context,
}

/// What an operation remembers.
#[derive(Default)]
pub(crate) struct Attempt {
    in_flight: Option<Exchange>,
}

impl<D: Database> Store for SqlStore<D> {
    type Config = D;
    type Record = ();
    type Attempt = Attempt;
    type Flight = Exchange;
    type Watch = std::convert::Infallible;
    type Seen = Seen;

    const LOOKS: Looks = Looks::Together;
    const PAUSES: (Duration, Duration) = D::PAUSES;
    const DEAD_AFTER: Duration = ALIVE;
    /// It flies on the manager's runtime, and ends by itself: longer than any
    /// request timeout.
    const FLIES_FOR: Duration = Duration::from_secs(48 * 60 * 60);

    fn check_config(database: &D) -> Result<(), BackendError> {
        database.check()
    }

    fn open(database: D, context: Context) -> Self {
        Self {
            tables: Arc::new(Tables::new(database, context.clone())),
            strangers: Strangers::default(),
            context,
        }
    }

    async fn check(&self, deadline: Deadline) -> Result<(), Failure> {
        let tables = &self.tables;
        if let Some(schema) = tables.database.schema() {
            tables.run(schema, &[], deadline).await?;
        }
        tables.look_at_durability(deadline).await?;
        self.context.spawn(clean::keep_clean(Arc::clone(tables)));
        let notifications = tables.notifications();
        if let Some(listening) = tables.database.listen(&tables.pooled.pool, notifications) {
            self.context.spawn(listening);
        }
        Ok(())
    }

    async fn settle(&self) {
        let tables = &self.tables;
        if D::IS_FILE {
            tables.pooled.is_unused();
            let closed = async {
                tables.running.wait_idle().await;
                tables.pooled.close_all().await;
            };
            let _ = tables.time.bound(tables.deadline(), closed).await;
        }
    }

    async fn shut_down(&self, _holds: bool, deadline: Deadline) {
        let closing = self.tables.pooled.pool.close();
        let _ = self.tables.time.bound(deadline, closing).await;
    }

    fn close(&self) {
        // From here on, whatever becomes of those that are in use.
        drop(self.tables.pooled.pool.close());
    }

    fn capabilities(_: &D) -> Capabilities {
        Capabilities {
            fair: true,
            tokens: TokenTier::BestEffort,
            strict_with: D::DIALECT.durable_with,
            read_write: true,
            ..Capabilities::new(D::NAME)
        }
    }

    fn servers(database: &D) -> Option<Servers> {
        database.servers()
    }

    fn tokens(&self) -> Option<TokenTier> {
        Some(self.tables.tokens())
    }

    /// Who does not wait costs no signs of life, looks and farewells.
    fn opening(&self, request: &Request) -> Opening {
        match request.mode {
            Mode::Write => Opening::Cheap,
            Mode::Read => Opening::Try,
        }
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        let tables = &self.tables;
        tables.is_used();
        let owner = request.owner.to_string();
        let args = Args {
            key: &request.key,
            owner: &owner,
            ttl: request.ttl,
            ..tables.args()
        };
        let asks = match want {
            Want::First => {
                let script = tables.scripts.fill(&tables.scripts.take, &args);
                let columns = &[Column::Int, Column::Int];
                let answer = self.ask(script, columns, deadline, attempt).await?;
                let row = answer.rows.last();
                return Ok(row.map_or(Take::Busy, |row| {
                    self.granted(row.int(0), row.int(1), answer.sent_at)
                }));
            }
            Want::Try => Asks::Try,
            Want::Queue { beat: false } => Asks::Queue,
            Want::Queue { beat: true } => Asks::QueueAndBeat,
        };
        let script = tables.scripts.acquire(request.mode, asks, &args);
        let columns = &[Column::Int; 4];
        let answer = self.ask(script, columns, deadline, attempt).await?;
        if asks == Asks::QueueAndBeat {
            tables.events.beats(answer.sent_at);
        }
        let Some(row) = answer.rows.first() else {
            return Err(Failure {
                cause: Cause::Error(BackendError::unavailable(
                    "it gave no answer to a script; is there something between that changes them?",
                )),
                next: Next::Stop,
                applied: Applied::Answered,
            });
        };
        Ok(match (row.int(0), asks) {
            (1, _) => self.granted(row.int(1), row.int(3), answer.sent_at),
            (_, Asks::Try) => Take::Busy,
            _ => Take::Queued,
        })
    }

    async fn renew(
        &self,
        due: &mut [Due<Self>],
        deadline: Deadline,
        _: &mut Attempt,
    ) -> Vec<Result<Renewed, Failure>> {
        let leases: Vec<_> = due.iter().map(|due| &due.request).collect();
        self.tables.extend_all(&leases, deadline).await
    }

    async fn release(
        &self,
        request: &Request,
        _: Option<&()>,
        ending: Ending,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Freed, Failure> {
        let tables = &self.tables;
        let owner = request.owner.to_string();
        let args = Args {
            key: &request.key,
            owner: &owner,
            ..tables.args()
        };
        // It has the lock and no place, so that less is to be done.
        let is_simple = ending == Ending::Released && request.mode == Mode::Write;
        let script = match is_simple {
            true => &tables.scripts.release,
            false => &tables.scripts.leave,
        };
        let script = tables.scripts.fill(script, &args);
        let answer = self.ask(script, &[Column::Int], deadline, attempt).await?;
        let row = answer.rows.first();
        Ok(match row.is_some_and(|row| is_simple || row.int(0) == 1) {
            true => Freed::Released,
            false => Freed::NotHeld,
        })
    }

    fn silent(&self, _: Duration) -> BackendError {
        D::silent(&self.tables.pooled.endpoint)
    }

    fn abandon(&self, _: &Request, attempt: Attempt, _: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(attempt.in_flight)
    }

    /// What it did, or an earlier script, is for the release to undo.
    async fn follow(&self, flight: Exchange, _: &Request) -> Followed {
        match flight.ends().await {
            true => Followed::Run,
            false => Followed::Unknown,
        }
    }

    /// What has not been answered when its connection was given up may have arrived
    /// all the same, and then waits as long as the database lets it.
    fn late(&self, _: &Request, _: Option<&()>, sent_at: Instant) -> Late {
        if D::IS_FILE {
            return Late::Never;
        }
        let timeout = self.tables.request_timeout;
        Late::Until(Deadline::from(sent_at, timeout + patience(timeout)))
    }

    fn pace(&self, seen: &mut Seen) -> Duration {
        match self.tables.is_notified() {
            true => LOOK,
            false => seen.pause(D::PACE, self.tables.time.now()),
        }
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        beat: bool,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        watch::look_at(&self.tables, &self.strangers, waited, beat, deadline).await
    }

    async fn farewell(&self, deadline: Deadline) {
        let tables = &self.tables;
        let script = tables
            .scripts
            .fill(&tables.scripts.farewell, &tables.args());
        let _ = tables.run(script, &[], deadline).await;
    }

    async fn inspect(
        &self,
        key: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Option<LockInfo>, Failure> {
        let script = self.tables.scripts.inspect(key);
        let answer = self
            .ask(script, inspect::COLUMNS, deadline, attempt)
            .await?;
        Ok(inspect::read(&answer.rows).pop())
    }

    async fn list(
        &self,
        prefix: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Option<Vec<LockInfo>>, Failure> {
        let script = self.tables.scripts.list(prefix);
        let answer = self
            .ask(script, inspect::COLUMNS, deadline, attempt)
            .await?;
        Ok(Some(inspect::read(&answer.rows)))
    }
}

impl<D: Database> SqlStore<D> {
    async fn ask(
        &self,
        script: String,
        columns: &'static [Column],
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Answer, Failure> {
        let exchange = self
            .tables
            .begin(script, columns, Priority::InTurn, deadline);
        self.tables.answer(exchange, &mut attempt.in_flight).await
    }

    fn granted(&self, token: i64, durable: i64, sent_at: Instant) -> Take<Self> {
        self.tables.durability.found(durable == 1);
        Take::Granted(Granted {
            token: token.unsigned_abs(),
            sent_at,
            record: (),
        })
    }
}
