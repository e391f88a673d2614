//! Waiting over a session: for the end of a node, and for a change of a folder.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{OptionFuture, join};
use zookeeper_client::{EventType, OneshotWatcher};

use super::session::Session;
use crate::deadline::Deadline;
use crate::store::Failure;
use crate::stores::since;

impl Session {
    /// Waits until the node at this path is gone, or may be. The end of the session ends the wait
    /// too, since the waiter's own place is gone then. Returns at once if there is a node at
    /// `unless`: it may have been made before the watch was set.
    ///
    /// A change of the node's content is reported too. If all that has happened is that the holder
    /// says since when it has the lock, the wait goes on. With any other change, an operator may
    /// have woken the waiter, and may even have taken its place meanwhile (`broken`).
    pub(super) async fn wait_for_the_end_of(
        &self,
        path: &str,
        unless: Option<&str>,
    ) -> Result<(), Failure> {
        let mut before = None;
        loop {
            let deadline = self.context.time.after(self.context.request_timeout / 2);
            let watched = self.ask(path, deadline, |client| {
                // A watch of the data, which is not left behind if there is no node. Both are sent
                // at once, and the server runs them in this order.
                let watched = client.get_and_watch_data(path);
                let told = OptionFuture::from(unless.map(|unless| client.check_stat(unless)));
                async {
                    let (watched, told) = join(watched, told).await;
                    let (data, stat, watcher) = watched?;
                    let is_told = told.transpose()?.flatten().is_some();
                    let says_since = matches!(since::holder(&data), Some((_, Some(_))));
                    Ok((is_told, says_since, stat.version, watcher))
                }
            });
            let Some((false, says_since, version, watcher)) = watched.await?.0 else {
                return Ok(());
            };
            // That is the first such write, if nothing else has changed. A holder whose write was
            // not answered writes again; then the waiter asks, as it does after any other change.
            let goes_on = before
                .is_none_or(|before| says_since && before == (false, version.wrapping_sub(1)));
            if !goes_on {
                return Ok(());
            }
            before = Some((says_since, version));
            let mut event = None;
            let told = async { event = self.watch_event(watcher).await };
            self.outlasts(told).await?;
            if event != Some(EventType::NodeDataChanged) {
                return Ok(());
            }
        }
    }

    /// Waits until a watch reports something, or the session ends.
    pub(super) async fn watch_event(&self, watcher: OneshotWatcher) -> Option<EventType> {
        // The client's watcher panics if the client's own task has ended.
        let changed = AssertUnwindSafe(watcher.changed()).catch_unwind();
        match changed.await {
            Ok(event) => Some(event.event_type),
            Err(_) => {
                self.over.cancel();
                None
            }
        }
    }

    /// Waits for this, or until the session has ended; but not for long without a connection.
    pub(super) async fn outlasts(&self, waits: impl Future<Output = ()>) -> Result<(), Failure> {
        // After this long without a connection, the same time is left to ask again.
        let limit = self.context.request_timeout / 2;
        tokio::select! {
            () = waits => {}
            () = self.over.cancelled() => {}
            () = self.until_silent_for(limit) => return Err(Failure::not_sent()),
        }
        Ok(())
    }

    /// Resolves when the session has ended.
    pub(super) async fn ends(&self) {
        self.over.cancelled().await;
    }

    /// The nodes of a folder, and a watch that reports the next node that comes or goes. `None`:
    /// there is no folder.
    pub(super) async fn list_and_watch(
        &self,
        folder: &str,
        deadline: Deadline,
    ) -> Result<Option<(Vec<String>, OneshotWatcher)>, Failure> {
        let listed = self.ask(folder, deadline, |client| {
            client.list_and_watch_children(folder)
        });
        Ok(listed.await?.0)
    }

    /// Resolves when there has been no connection for this long.
    async fn until_silent_for(&self, limit: Duration) {
        let time = &self.context.time;
        let mut states = self.client.state_watcher();
        while time
            .bound(time.after(limit), self.until_connected())
            .await
            .is_ok()
        {
            states.changed().await;
        }
    }
}
