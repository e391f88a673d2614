//! Taking a lock.
//!
//! A free lock is taken with a plain `SET NX PX`. An answer that was lost and a lock
//! held by somebody else look the same to it, so it is sent once at most. Everything
//! else is a script that knows its owner: to wait is to ask `acquire.lua` once more.

use std::sync::atomic::Ordering;
use std::time::Instant;

use redis::Value;

use super::attempt::Attempt;
use super::commands::{self, Patience};
use super::confirm::Confirmer;
use super::connections::Link;
use super::names::Keyspace;
use super::store::RedisStore;
use crate::backend::{Renewed, Request};
use crate::deadline::{Deadline, Sending};
use crate::store::{Applied, Failure, Granted, Take, Want};
use crate::token::TOKENS_PER_GRANT;

impl RedisStore {
    /// Takes the lock if it is free, in the cheapest way.
    pub(super) async fn first(
        &self,
        request: &Request,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        let link = self.servers.link(&request.key, deadline).await?;
        let at = Sending::now(deadline);
        attempt.in_flight = Some(link.connection.clone());
        let set = commands::take(self.servers.space(), request);
        let answers = link.connection.take(set, at).await;
        let (error, applied) = match self.servers.hear(&link, attempt, at.at, answers)? {
            [Value::Okay, Value::Int(last)] => {
                return self.granted(request, &link, last, at, attempt).await;
            }
            [Value::Nil, _] => return Ok(Take::Busy),
            // Taken, but without a token. The script asks for one again.
            [Value::Okay, Value::ServerError(error)] => (error, Applied::Answered),
            [Value::ServerError(error), _] => (error, Applied::No),
            _ => return Err(self.servers.nonsense(&link)),
        };
        let refused = self
            .servers
            .refused(&link, &request.key, error, deadline, attempt);
        Err(Failure {
            applied,
            ..Box::pin(refused).await
        })
    }

    /// The one question of a waiter, asked as often as it likes.
    pub(super) async fn acquire(
        &self,
        request: &Request,
        want: Want,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        let (patience, held) = match want {
            Want::Queue { .. } => {
                self.listen(&request.key, deadline, attempt).await;
                (Patience::Queue, Take::Queued)
            }
            Want::First | Want::Try => (Patience::Try, Take::Busy),
        };
        let (servers, process) = (&self.servers, self.process);
        let highest = servers.connector.highest_token.load(Ordering::Relaxed);
        let build = |form| {
            let space = servers.space();
            commands::acquire(space, form, request, process, patience, highest)
        };
        let answer = servers.ask(&request.key, deadline, attempt, build).await?;
        match answer.value {
            Value::Int(0) => {
                self.events.heard(answer.sent_at);
                if patience == Patience::Queue {
                    self.events.beats(answer.sent_at);
                }
                Ok(held)
            }
            Value::Int(last) => {
                let at = Sending {
                    at: answer.sent_at,
                    deadline,
                };
                self.granted(request, &answer.link, last, at, attempt).await
            }
            _ => Err(servers.nonsense(&answer.link)),
        }
    }

    /// The lock is held. `last` is the last of the numbers that were drawn.
    async fn granted(
        &self,
        request: &Request,
        link: &Link,
        last: i64,
        at: Sending,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        let (mut token, mut sent_at) = (first_of(last), at.at);
        if token <= link.connection.token_floor() {
            // The counter has lost what it was when this connection was made.
            token = Box::pin(self.draw_again(link, at.deadline, attempt)).await?;
        }
        let highest = &self.servers.connector.highest_token;
        highest.fetch_max(token + (TOKENS_PER_GRANT - 1), Ordering::Relaxed);
        if let Some(confirmer) = &self.confirmer {
            // Who leaves meanwhile leaves the lock.
            attempt.in_flight = Some(link.connection.clone());
            let confirmed = Box::pin(self.confirmed(confirmer, request, at.deadline)).await;
            attempt.in_flight = None;
            sent_at = confirmed?;
        }
        Ok(Take::Granted(Granted {
            token,
            sent_at,
            record: (),
        }))
    }

    /// The lock counts when so many replicas have it, and from then on. Until that is
    /// so it is asked for again, as it is this owner's.
    async fn confirmed(
        &self,
        confirmer: &Confirmer,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Instant, Failure> {
        // However late the answer was seen.
        let settings = &self.servers.connector.settings;
        let deadline = deadline.max(Deadline::after(settings.patience()));
        let renewed = confirmer.renew(&[request], deadline).await;
        let failure = match renewed.into_iter().next() {
            Some(Ok(Renewed::Extended { sent_at })) => return Ok(sent_at.into_std()),
            // It is elsewhere, or free: to ask at once might find the same.
            Some(Ok(Renewed::Gone)) | None => Failure::not_sent(),
            Some(Err(failure)) => failure,
        };
        Err(Failure {
            applied: Applied::Answered,
            ..failure
        })
    }

    /// Lifts the counter above what it was, and draws from it. Still before any later
    /// grant, as the lock is held.
    async fn draw_again(
        &self,
        link: &Link,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<u64, Failure> {
        let commands = commands::pipeline([
            commands::lift_tokens(&Keyspace::Server, link.connection.token_floor()),
            commands::draw_tokens(&Keyspace::Server, 1),
        ]);
        // Who leaves meanwhile leaves the lock.
        attempt.in_flight = Some(link.connection.clone());
        let answers = link.connection.run_all(&commands, deadline).await;
        let answers = self.servers.hear(link, attempt, Instant::now(), answers);
        let answers = answers.map_err(|failure| Failure {
            applied: Applied::Answered,
            ..failure
        })?;
        match <[Value; 2]>::try_from(answers) {
            Ok([Value::Int(_), Value::Int(last)]) => Ok(first_of(last)),
            Ok([Value::ServerError(error), _] | [_, Value::ServerError(error)]) => Err(self
                .servers
                .refused(link, "", error, deadline, attempt)
                .await),
            _ => Err(self.servers.nonsense(link)),
        }
    }
}

/// `INCRBY` answers with the last of the numbers that it reserves.
fn first_of(last: i64) -> u64 {
    last.unsigned_abs().saturating_sub(TOKENS_PER_GRANT - 1)
}
