//! A floor for the tokens: their counters are raised to it, so every process that draws from a
//! counter obeys the floor.
//!
//! A single server has one counter, and so has each slot that votes. In a cluster each slot has
//! its own counter, which is created by the first draw. A draw starts at the clock of its node,
//! so a floor that all clocks have passed is obeyed without any command; for a higher floor, the
//! counters of all slots are raised.

use redis::Value;

use super::batcher::How;
use super::commands;
use super::connector::Connector;
use super::names::{SLOTS, tag_of};
use super::scripts::{self, LAST_NUMBER};
use super::servers::{Notes, RedisStore, Route, unexpected_answer};
use crate::apart::try_all;
use crate::backend::{BackendError, BackendErrorKind};
use crate::deadline::Deadline;
use crate::store::Failure;
use crate::stores::redis::topology::Topology;

/// The highest floor: it leaves room for 2^50 numbers above it.
const HIGHEST: u64 = LAST_NUMBER - (1 << 50);

/// If the clock of a node is this far past the floor, in microseconds, the clocks of all nodes
/// have passed it.
const AN_HOUR: u64 = 3_600_000_000;

/// How many counters are raised at a time.
const AT_ONCE: u16 = 256;

impl RedisStore {
    pub(super) async fn raise_to_floor(
        &self,
        floor: u64,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        if self.space().redisson().is_some() {
            return Err(Failure::refused(BackendError::cannot_raise_tokens(
                "redisson",
                "each of its locks has a counter of its own, which services in Java count on",
            )));
        }
        if floor > HIGHEST {
            return Err(Failure::refused(BackendError::new(
                BackendErrorKind::Config,
                format!(
                    "`token_floor`: {floor} is too high for Redis, whose scripts count exactly \
                     to 2^53; give a number up to {HIGHEST}"
                ),
            )));
        }
        // If a server loses its counter, each new connection raises it again.
        self.connector.given(floor);
        match &self.route {
            Route::One(..) => self.raise_counter("", floor, deadline).await,
            Route::BySlot(topology) => self.raise_slots(topology, floor, deadline).await,
        }
    }

    /// Raises the token counter of a lock, on as many replicas as a lock needs.
    pub(super) async fn raise_counter(
        &self,
        key: &str,
        to: u64,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let how = match self.confirming {
            Some(_) => How::Confirmed,
            None => How::Plain,
        };
        let (raise, notes) = (
            || commands::raise_tokens(self.space(), key, to),
            &mut Notes::default(),
        );
        let answer = self.exchange(key, how, deadline, notes, &raise).await?;
        match answer.value {
            Value::Int(counter) => match (scripts::number(counter), how) {
                (Some(at), _) if at < to => Err(unexpected_answer(&answer.from)),
                (Some(_), How::Confirmed) => self.check_replicas(&answer),
                (Some(_), _) => Ok(()),
                (None, _) => {
                    let foreign = answer.from.endpoint().foreign_counter(key);
                    Err(Failure::refused(foreign))
                }
            },
            _ => Err(unexpected_answer(&answer.from)),
        }
    }

    async fn raise_slots(
        &self,
        topology: &Topology,
        floor: u64,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let mut passed = true;
        for slot in topology.map.last_slots() {
            let answer = self.ask(tag_of(slot), deadline, &commands::clock).await?;
            let time: Result<(u64, u64), _> = redis::from_redis_value(answer.value);
            let (seconds, behind) = time.map_err(|_| unexpected_answer(&answer.from))?;
            let time = seconds.saturating_mul(1_000_000).saturating_add(behind);
            passed &= time > floor + AN_HOUR;
        }
        if passed {
            return Ok(());
        }
        let Connector { time, settings, .. } = &*self.connector;
        for first in (0..SLOTS).step_by(AT_ONCE.into()) {
            // All of them may take longer than an answer may.
            let deadline = time.after(settings.request_timeout);
            let some = first..SLOTS.min(first + AT_ONCE);
            let raised = some.map(|slot| self.raise_counter(tag_of(slot), floor, deadline));
            try_all(raised).await?;
        }
        Ok(())
    }
}
