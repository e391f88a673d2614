//! Giving back what a request may have left at the server when its caller has
//! gone, or no longer knows.
//!
//! A `SET` whose answer was lost may be run later than anything that is sent
//! after it over another connection, and would then lock the key for nobody: a
//! ghost. What was sent over one connection is run in order. So if the
//! connection still works, one release behind the last command is the end of
//! it; if not, the release is repeated until the ghost's ttl has passed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;
use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::clock::{Backoff, Deadline};
use super::commands;
use super::connection::{Connection, Lost};
use super::core::Shared;
use super::errors::{Remedy, remedy};
use super::scripts::Form;
use super::waiters::Waiters;
use crate::backend::{Owner, Request};

/// How long the caller's own connection has to answer. Its runtime may be
/// blocked, or not running at all.
const BEHIND: Duration = Duration::from_millis(250);

/// What is to be given back.
pub(super) struct GiveBack {
    pub(super) request: Request,
    /// The connection over which commands are under way.
    pub(super) behind: Option<Connection>,
    /// When commands were last sent that were never answered.
    pub(super) unanswered: Option<Instant>,
}

impl GiveBack {
    /// Works until nothing of the request can be left. When `stopping`, once
    /// is enough.
    pub(super) async fn run(self, shared: Arc<Shared>, stopping: CancellationToken) {
        let Self {
            request,
            behind,
            unanswered,
        } = self;
        let leaving = Leaving::new(&shared.waiters, request.owner);
        let mut doubt = unanswered;
        if let Some(connection) = behind {
            let sent_at = Instant::now();
            let deadline = Deadline::after(BEHIND);
            match release_behind(&connection, &request, &shared, deadline).await {
                Ok(()) if doubt.is_none() => return,
                Ok(()) => {}
                Err(_) => doubt = Some(sent_at),
            }
        }
        let end = Deadline::from(doubt.unwrap_or_else(Instant::now), request.ttl);
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            let mut call = Call::new(&shared.connector, Arc::clone(&shared.lane));
            let answer = call
                .ask(&request.key, |form| {
                    commands::release(form, &request, Some(shared.process))
                })
                .await;
            let enough = answer.is_ok() && (doubt.is_none() || stopping.is_cancelled());
            if enough || end.has_passed() {
                return;
            }
            let pause = end.within(backoff.pause());
            tokio::select! {
                () = shared.connector.clock.sleep(pause) => {}
                // It was granted just now.
                () = leaving.granted() => {}
                () = stopping.cancelled(), if !stopping.is_cancelled() => {}
            }
        }
    }
}

/// Sends a release over the connection on which the request's other commands
/// were sent.
async fn release_behind(
    connection: &Connection,
    request: &Request,
    shared: &Shared,
    deadline: Deadline,
) -> Result<(), Lost> {
    for form in [Form::Digest, Form::Source] {
        let command = commands::release(form, request, Some(shared.process));
        match connection.run_behind(command, deadline).await? {
            Value::ServerError(error) if remedy(&error) == Remedy::SendScript => {}
            Value::ServerError(error) => return Err(Lost::Broken(error.into())),
            _ => break,
        }
    }
    Ok(())
}

/// Listens for grants to an owner who has left.
struct Leaving<'a> {
    waiters: &'a Waiters,
    owner: Owner,
    granted: Arc<tokio::sync::Notify>,
}

impl<'a> Leaving<'a> {
    fn new(waiters: &'a Waiters, owner: Owner) -> Self {
        Self {
            waiters,
            owner,
            granted: waiters.leaves(owner),
        }
    }

    async fn granted(&self) {
        self.granted.notified().await;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.waiters.left(self.owner);
    }
}
