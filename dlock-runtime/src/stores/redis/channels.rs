//! What a connection is subscribed to.

use std::collections::HashSet;
use std::sync::Arc;

use redis::ServerError;

use super::batcher::Lost;
use super::connection::Connection;
use super::connections::RuntimeConnection;
use super::errors::{RetryPolicy, classify};
use crate::deadline::Deadline;
use crate::stores::address::Address;

/// So many channels are subscribed to in one go.
const AT_ONCE: usize = 500;

/// The keys whose channels a connection is subscribed to.
#[derive(Default)]
pub(crate) struct Channels {
    connection: Option<Connection>,
    keys: HashSet<Arc<str>>,
}

/// It could not be subscribed to: an error that a server has said, and where that is.
pub(super) type Unheard = Option<(ServerError, Address)>;

impl Channels {
    pub(super) fn keys(&self) -> &HashSet<Arc<str>> {
        &self.keys
    }

    /// Whether it is this connection that is subscribed.
    pub(super) fn are_of(&self, connection: &Connection) -> bool {
        let ours = self.connection.as_ref();
        ours.is_some_and(|ours| ours.is(connection))
    }

    /// Subscribes to what is wanted now, and to nothing else. `leaves` is told before
    /// it is not listened to any more.
    pub(super) async fn follow(
        &mut self,
        listening: &RuntimeConnection,
        wanted: &HashSet<Arc<str>>,
        channel_of: impl Fn(&str) -> String,
        leaves: impl Fn(&str),
        deadline: Deadline,
    ) -> Result<(), Unheard> {
        if wanted.is_empty() && self.keys.is_empty() {
            return Ok(());
        }
        let connection = listening.connection(deadline).await.map_err(|_| None)?;
        if !self.are_of(&connection) {
            self.connection = Some(connection.clone());
            self.keys.clear();
        }
        let old: Vec<_> = self.keys.difference(wanted).cloned().collect();
        old.iter().for_each(|key| leaves(key));
        let new: Vec<_> = wanted.difference(&self.keys).cloned().collect();
        for (keys, listens) in [(&new, true), (&old, false)] {
            for keys in keys.chunks(AT_ONCE) {
                let channels: Vec<_> = keys.iter().map(|key| channel_of(key)).collect();
                let Err(lost) = connection.subscribe(&channels, listens, deadline).await else {
                    continue;
                };
                let error = match lost.clone() {
                    Lost::Broken(error) => ServerError::try_from(error).ok(),
                    Lost::Silent | Lost::TooLate => None,
                };
                let has_moved = |error| classify(error) == RetryPolicy::Moved;
                if !listens && error.as_ref().is_some_and(has_moved) {
                    // What it was subscribed to there has ended with that.
                    continue;
                }
                tracing::debug!(target: "dlock::store", "{}: {lost:?}", connection.place());
                // What it is subscribed to is not known any more.
                connection.discard();
                return Err(error.map(|error| (error, connection.address().clone())));
            }
        }
        self.keys.clone_from(wanted);
        Ok(())
    }
}
