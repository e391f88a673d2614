//! The scripts of each operation that the engine asks of a database.
//!
//! A free lock that nobody waits for is taken by the script `take`, perhaps together with others
//! ([`Batches`](super::batches::Batches)). In every other case a lock is asked for by the script
//! `acquire`. Both may be repeated for the same owner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connections::Answer;
use super::database::SqlConfig;
use super::durability;
use super::exchange::Exchange;
use super::inspect;
use super::script::{ALIVE, patience};
use super::tables::{Notifies, Tables};
use super::watch::{self, Seen};
use super::work::{ACQUIRE_COLUMNS, Args, SingleStatement, Together};
use crate::backend::{
    BackendError, BackendErrorKind, Capabilities, Finding, Level, LockInfo, Mode, Renewed, Request,
    Servers, TokenTier,
};
use crate::deadline::Deadline;
use crate::key::Shown;
use crate::limits;
use crate::store::{
    Abandoned, Applied, Attempt, Attempted, Break, Cause, Context, Due, Ending, Failure, Followed,
    Freed, Granted, Late, LeftBehind, Looks, Opening, Store, Take, Waited, Want, Whose,
};
use crate::stores::stored_owner::StoredOwner;
use crate::token::TOKENS_PER_GRANT;

/// How often waited-for locks are looked at if notifications come through.
const LOOK: Duration = Duration::from_secs(1);

/// The answer of the scripts for a lock whose body has been done.
const DONE: i64 = 2;

/// The answer of `acquire` to a waiter that was taken out of the queue.
const OUT: i64 = 3;

/// A database, and what this process does in it.
pub(crate) struct SqlStore<D: Notifies> {
    tables: Arc<Tables<D>>,
    context: Context,
}

/// The script that has not been answered yet.
type Notes = Option<Exchange>;

impl<D: Notifies> Store for SqlStore<D> {
    type Config = SqlConfig<D>;
    type Record = ();
    type Notes = Notes;
    type Flight = Exchange;
    type Watch = std::convert::Infallible;
    type Seen = Seen;

    const LOOKS: Looks = Looks::Together;
    const PAUSES: (Duration, Duration) = D::PAUSES;
    const DEAD_AFTER: Duration = ALIVE;
    /// A script runs on the manager's runtime and ends by itself, so the cleanup always waits for
    /// it: this is longer than any request timeout.
    const FLIGHT_LIMIT: Duration = Duration::from_secs(48 * 60 * 60);

    async fn complete(config: SqlConfig<D>, _: Duration) -> Result<SqlConfig<D>, BackendError> {
        limits::MAX_CONNECTIONS.check_in_backend(config.max_connections)?;
        Ok(config)
    }

    fn open(mut config: SqlConfig<D>, context: Context) -> Self {
        if let Some(label) = &context.label {
            config.options = D::named(config.options, label);
        }
        Self {
            tables: Arc::new(Tables::new(config, context.clone())),
            context,
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        let tables = &self.tables;
        if tables.config.create_tables {
            let made = tables.run("create_tables", Args::default(), 0, deadline);
            made.await?;
        }
        let check = || tables.run("check", Args::default(), durability::COLUMNS, deadline);
        let mut answer = check().await;
        if tables.config.create_tables && answer.as_ref().is_err_and(are_of_another_version) {
            for script in ["upgrade_readers", "upgrade_locks"] {
                let upgraded = tables.run(script, Args::default(), 0, deadline).await;
                // Fails with such an error if it was done before; then the check below decides.
                // While another process is doing it, the error is another one, and the engine tries
                // again.
                if let Err(failure) = upgraded
                    && !are_of_another_version(&failure)
                {
                    return Err(failure);
                }
            }
            answer = check().await;
        }
        let read = tables.durability.read(&answer?.rows, &tables.endpoint);
        read.map_err(Failure::refused)?;
        self.context.spawn(Arc::clone(tables).keep_clean());
        let kept = Arc::clone(tables);
        self.context
            .spawn(async move { kept.connections.close_unneeded(&kept.time).await });
        if let Some(listening) = D::listen(Arc::clone(tables)) {
            self.context.spawn(listening);
        }
        Ok(())
    }

    async fn examine(&self, deadline: Deadline) -> Vec<Finding> {
        let tables = &self.tables;
        let endpoint = &tables.endpoint;
        let mut found = Vec::new();
        let asked = tables.run("server", Args::default(), 2, deadline).await;
        if let Some(row) = asked.ok().as_ref().and_then(|answer| answer.rows.first()) {
            let version = format!("{endpoint}: version {}", Shown(row.text(0)));
            found.push(Finding::new(Level::Ok, "version", version));
            found.push(match row.text(1) {
                "" => Finding::new(Level::Ok, "writes", format!("{endpoint}: takes writes")),
                why => Finding::new(
                    Level::Warn,
                    "writes",
                    format!(
                        "{endpoint}: {why}, and locks are where the writes go; name the primary"
                    ),
                ),
            });
        }
        let check = tables.run("check", Args::default(), durability::COLUMNS, deadline);
        if let Ok(answer) = check.await
            && tables.durability.read(&answer.rows, endpoint).is_ok()
        {
            found.push(match tables.durability.risk(endpoint) {
                None => Finding::new(
                    Level::Ok,
                    "persistence",
                    format!("{endpoint}: keeps what it has confirmed"),
                ),
                Some(risk) => Finding::new(Level::Warn, "persistence", risk),
            });
        }
        found
    }

    async fn settle(&self) {
        let tables = &self.tables;
        if D::IS_FILE {
            tables.connections.rest(true);
            let limit = tables.time.after(tables.endpoint.request_timeout);
            tables.close_idle(limit).await;
        }
    }

    async fn shut_down(&self, _holds: bool, deadline: Deadline) {
        self.tables.connections.close();
        self.tables.close_idle(deadline).await;
    }

    fn close(&self) {
        self.tables.connections.close();
        self.tables.connections.drop_idle();
    }

    fn capabilities(_: &SqlConfig<D>) -> Capabilities {
        Capabilities {
            fair: true,
            tokens: TokenTier::BestEffort,
            strict_with: D::DURABLE_WITH,
            read_write: true,
            permits: true,
            once: true,
            ..Capabilities::new(D::NAME)
        }
    }

    fn servers(config: &SqlConfig<D>) -> Option<Servers> {
        config.servers()
    }

    fn tokens(&self) -> Option<TokenTier> {
        let (tokens, is_due) = self.tables.durability.tokens();
        if is_due {
            let tables = Arc::clone(&self.tables);
            self.context.spawn(async move {
                let look = tables.look_after("check", Args::default(), durability::COLUMNS);
                if let Some(answer) = look.await {
                    let _ = tables.durability.read(&answer.rows, &tables.endpoint);
                }
            });
        }
        Some(tokens)
    }

    /// A request that gets the lock at once then needs no signs of life, looks and farewells.
    fn opening(&self, request: &Request) -> Opening {
        match request.mode {
            Mode::Write => Opening::Cheap,
            Mode::Read | Mode::Permits(_) => Opening::Try,
        }
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        let tables = &self.tables;
        tables.note_use();
        if want == Want::First {
            let answer = tables.together(Together::Take, request, deadline, notes);
            let answer = answer.await?;
            return match answer.rows.last() {
                Some(row) if row.int(3) == 0 => {
                    self.granted(row.text(1), row.int(2), answer.sent_at)
                }
                Some(row) if row.int(3) == DONE => Ok(Take::Done),
                _ => Ok(Take::Busy),
            };
        }
        let mut args = Args::of(request);
        args.queue = match want {
            Want::Queue { beat: true, .. } => "wait_alive",
            Want::Queue { beat: false, .. } => "wait",
            Want::First | Want::Try => "",
        };
        let is_turn = matches!(
            want,
            Want::Queue {
                beat: false,
                has_place: true
            }
        ) && request.mode == Mode::Write
            && tables.quick.has(SingleStatement::Turn);
        let answer = match is_turn {
            true => tables.turn(args, request, deadline, notes).await?,
            false => {
                let asked = tables.ask("acquire", args, ACQUIRE_COLUMNS, deadline, notes);
                asked.await?
            }
        };
        if matches!(want, Want::Queue { beat: true, .. }) {
            tables.events.beats(answer.sent_at);
        }
        let Some(row) = answer.rows.first() else {
            let nothing = BackendError::unavailable(
                "it gave no answer to a script; is there something between that changes them?",
            );
            return Err(Failure::stop(nothing).with(Applied::Answered));
        };
        if let (Mode::Permits(_), Some(held)) = (request.mode, StoredOwner::read(row.text(4))) {
            request.note_mode(held.mode);
        }
        match (row.int(0), want) {
            (1, _) => self.granted(row.text(1), row.int(3), answer.sent_at),
            (DONE, _) => Ok(Take::Done),
            (OUT, Want::Queue { .. }) => Err(Failure::refused(BackendError::taken_out())),
            (_, Want::Queue { .. }) => Ok(Take::Queued),
            _ => Ok(Take::Busy),
        }
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        let leases: Vec<_> = due.iter().map(|due| &due.request).collect();
        self.tables.extend_all(&leases, deadline).await
    }

    async fn release(
        &self,
        request: &Request,
        _: Option<&()>,
        ending: Ending,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let tables = &self.tables;
        let mut args = Args::of(request);
        let script = match ending {
            // The owner has the lock and no place in the queue, so a shorter script is enough.
            Ending::Released if request.mode == Mode::Write => {
                let answer = tables.together(Together::Release, request, deadline, notes);
                return Ok(Freed::of(!answer.await?.rows.is_empty()));
            }
            Ending::Done(time) => {
                args.ttl = time;
                "done"
            }
            Ending::Left | Ending::Outvoted => {
                let left = tables.leave_soon(&request.key, args, deadline, notes);
                return Ok(self.freed(&left.await?));
            }
            Ending::Released => "leave",
        };
        let asked = tables.ask(script, args, 1, deadline, notes);
        Ok(self.freed(&asked.await?))
    }

    async fn raise_tokens(&self, floor: u64, deadline: Deadline) -> Attempted<()> {
        let args = Args {
            floor,
            ..Args::default()
        };
        self.tables.run("raise_tokens", args, 0, deadline).await?;
        Ok(())
    }

    async fn forget(
        &self,
        key: &str,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<bool> {
        let args = Args::of_key(key);
        let answer = self.tables.ask("forget", args, 1, deadline, notes);
        Ok(!answer.await?.rows.is_empty())
    }

    async fn break_off(
        &self,
        broken: &Break,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let (script, owner) = match &broken.whose {
            Whose::Holder(holder) => ("leave", &holder.owner),
            Whose::Waiter(waiter) => ("take_out", &waiter.owner),
        };
        let args = Args {
            owner: owner.clone(),
            ..Args::of_key(&broken.key)
        };
        let asked = self.tables.ask(script, args, 1, deadline, notes);
        Ok(self.freed(&asked.await?))
    }

    fn silent(&self, _: Duration) -> BackendError {
        self.tables.endpoint.silent::<D>()
    }

    fn abandon(&self, _: &Request, flight: Notes, _: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(flight.filter(|flight| !flight.stays()))
    }

    /// The release undoes what this script or an earlier one has done.
    async fn follow(&self, flight: Exchange, _: &Request) -> Followed {
        match flight.ends().await {
            true => Followed::Run,
            false => Followed::Unknown,
        }
    }

    /// A script whose connection was given up before the answer may still have reached the
    /// database. There it waits for rows for as long as its own limits allow.
    fn late(&self, _: &Request, _: Option<&()>, sent_at: Instant) -> Late {
        if D::IS_FILE {
            return Late::Never;
        }
        let timeout = self.tables.endpoint.request_timeout;
        Late::Until(Deadline::from(sent_at, timeout + patience(timeout)))
    }

    fn pace(&self, seen: &mut Seen) -> Duration {
        match self.tables.is_notified() {
            true => LOOK,
            false => seen.pause(D::PACE, &self.tables.time),
        }
    }

    #[cfg(feature = "sqlite")]
    async fn changed(&self) {
        self.tables.changes.next(&self.context.time).await;
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        beat: bool,
        deadline: Deadline,
    ) -> Attempted<()> {
        watch::look_at(&self.tables, waited, beat, deadline).await
    }

    async fn farewell(&self, deadline: Deadline) {
        let tables = &self.tables;
        let _ = tables.run("farewell", Args::default(), 0, deadline).await;
    }

    fn stored_as(&self, key: &str) -> Vec<String> {
        let key = key.replace('\'', "''");
        ["dlock_lock", "dlock_reader", "dlock_queue"]
            .map(|table| format!("{table} WHERE name = '{key}'"))
            .to_vec()
    }

    async fn inspect(
        &self,
        key: &str,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Option<LockInfo>> {
        let args = Args::of_key(key);
        let tables = &self.tables;
        let answer = tables.ask("inspect", args, inspect::COLUMNS, deadline, notes);
        let answer = answer.await?;
        let Some(lock) = inspect::read(&answer.rows).pop() else {
            return Ok(None);
        };
        let args = Args::of_key(key);
        let places = tables.ask("places", args, inspect::PLACE_COLUMNS, deadline, notes);
        let queue = inspect::queue(&places.await?.rows);
        Ok(Some(lock.with_queue(queue)))
    }

    async fn list(
        &self,
        prefix: &str,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Option<Vec<LockInfo>>> {
        let args = Args::of_key(prefix);
        let tables = &self.tables;
        let answer = tables.ask("list", args, inspect::COLUMNS, deadline, notes);
        let answer = answer.await?;
        Ok(Some(inspect::read(&answer.rows)))
    }
}

/// Whether the tables are those of another version or of another program, or are missing.
fn are_of_another_version(failure: &Failure) -> bool {
    let is_config = |error: &BackendError| error.kind() == BackendErrorKind::Config;
    matches!(&failure.cause, Cause::Error(error) if is_config(error)) && !is_denied(failure)
}

/// Whether the user has no right to use them.
fn is_denied(failure: &Failure) -> bool {
    matches!(&failure.cause, Cause::Error(error) if error.is_denied())
}

impl<D: Notifies> SqlStore<D> {
    /// Refuses a token that is no number, or lower than that of any grant: another program has
    /// written it, so the next tokens might not be above those that were given out.
    fn granted(&self, token: &str, durable: i64, sent_at: Instant) -> Result<Take<Self>, Failure> {
        let tables = &self.tables;
        let number = token.parse().ok();
        let Some(token) = number.filter(|token| *token >= TOKENS_PER_GRANT) else {
            let foreign = Failure::refused(tables.endpoint.foreign_token());
            return Err(foreign.with(Applied::Answered));
        };
        tables.durability.found(durable == 1, &tables.endpoint);
        tables.note_row();
        Ok(Take::Granted(Granted {
            token,
            sent_at,
            record: (),
        }))
    }

    /// Whether the owner had the lock, as a script that gives it back says. It may have made the
    /// row of the lock.
    fn freed(&self, answer: &Answer) -> Freed {
        self.tables.note_row();
        let row = answer.rows.first();
        Freed::of(row.is_some_and(|row| row.int(0) == 1))
    }
}
