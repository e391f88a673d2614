//! The conversation with one sentinel.

use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};

use super::super::commands;
use super::super::connection::closed;
use super::super::line::Line;
use super::Sentinels;
use super::votes::Vote;
use crate::backend::BackendError;
use crate::deadline::{Deadline, ManagerClock};
use crate::stores::address::Address;

/// Where a sentinel says that it now takes another server for a master.
pub(super) const SWITCHES: &str = "+switch-master";

impl Sentinels {
    /// Asks one of them, over a connection for this question only.
    pub(super) async fn ask(
        &self,
        index: usize,
        clock: &ManagerClock,
        deadline: Deadline,
    ) -> Result<Vote, BackendError> {
        let started = Instant::now();
        let conversation = async {
            let Line {
                mut connection,
                mut driver,
            } = self.call(index, |_| {}).await?;
            tokio::select! {
                biased;
                vote = self.question(index, &mut connection) => vote,
                () = &mut driver => Err(self.nodes[index].place().unreachable(closed())),
            }
        };
        match clock.bound(deadline, conversation).await {
            Ok(vote) => vote,
            Err(_) => Err(self.nodes[index].place().silent(started.elapsed())),
        }
    }

    /// Connects and logs in. What it publishes goes to `hear`.
    pub(super) async fn call(
        &self,
        index: usize,
        hear: impl Fn(&PushInfo) + Send + Sync + 'static,
    ) -> Result<Line, BackendError> {
        let node = &self.nodes[index];
        let place = node.place();
        Line::open(&node.address, &node.settings, &place, hear).await
    }

    /// Which server is the master.
    pub(super) async fn question(
        &self,
        index: usize,
        connection: &mut MultiplexedConnection,
    ) -> Result<Vote, BackendError> {
        let place = self.nodes[index].place();
        let question = commands::pipeline(commands::whereabouts(&self.master));
        let answers = connection
            .send_packed_commands(&question, 0, question.len())
            .await
            .map_err(|error| place.unreachable(error))?;
        let Ok([id, master]) = <[Value; 2]>::try_from(answers) else {
            return Err(place.nonsense());
        };
        let master = match master {
            Value::Nil => None,
            Value::ServerError(error) => return Err(place.refused(&error)),
            master => {
                let (host, port) = redis::from_redis_value(master).map_err(|_| place.nonsense())?;
                Some(Address { host, port })
            }
        };
        Ok(Vote {
            // Without the right to ask, or an old sentinel.
            sentinel: redis::from_redis_value(id).ok(),
            master,
        })
    }
}

/// Whether this says that the master with this name is another now.
pub(super) fn is_switch(push: &PushInfo, master: &str) -> bool {
    // `<master> <old host> <old port> <host> <port>`
    matches!(
        (&push.kind, &push.data[..]),
        (PushKind::Message, [_, Value::BulkString(message)])
            if message.strip_prefix(master.as_bytes()).is_some_and(|rest| rest.starts_with(b" "))
    )
}
