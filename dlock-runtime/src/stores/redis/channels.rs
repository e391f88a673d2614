//! The channels to which a connection is subscribed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::connection::Connection;
use super::connections::RuntimeConnection;
use super::connector::Connector;
use crate::deadline::Deadline;
use crate::outlast::outlast;
use crate::store::Failure;

/// The most channels in one round of subscriptions.
const AT_ONCE: usize = 500;

/// The keys whose channels a connection is subscribed to.
#[derive(Default)]
pub(crate) struct Channels {
    connection: Option<Connection>,
    keys: BTreeSet<Arc<str>>,
}

impl Channels {
    /// Subscribes to the channels of the wanted keys, and unsubscribes from all others.
    pub(super) async fn follow(
        &mut self,
        listening: &RuntimeConnection,
        wanted: &BTreeSet<Arc<str>>,
        channel_of: impl Fn(&str) -> String,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        if wanted.is_empty() && self.keys.is_empty() {
            return Ok(());
        }
        let connection = listening.connection(deadline).await?;
        let ours = self.connection.as_ref();
        if ours.is_none_or(|ours| !ours.is(&connection)) {
            self.connection = Some(connection.clone());
            self.keys.clear();
        }
        let old: Vec<_> = self.keys.difference(wanted).cloned().collect();
        let new: Vec<_> = wanted.difference(&self.keys).cloned().collect();
        for (keys, listens) in [(&new, true), (&old, false)] {
            for keys in keys.chunks(AT_ONCE) {
                let channels: Vec<_> = keys.iter().map(|key| channel_of(key)).collect();
                let Err(lost) = connection.subscribe(&channels, listens, deadline).await else {
                    continue;
                };
                outlast(|| {
                    tracing::debug!(target: "dlock::store", "{}: {lost:?}", connection.endpoint());
                });
                // It is not known any more to what it is subscribed.
                connection.discard();
                if let Some(error) = lost.refusal() {
                    let Connector { locator, .. } = &*listening.connector;
                    locator.redirected(&error, connection.address());
                }
                return Err(Failure::not_sent());
            }
        }
        self.keys.clone_from(wanted);
        Ok(())
    }
}
