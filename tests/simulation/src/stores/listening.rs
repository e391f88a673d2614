//! A connection of its own, over which a process hears what a server says.

use std::sync::Arc;
use std::time::Duration;

use dlock_runtime::store::Events;

use super::client::Client;
use crate::network::{Connection, Pushed, Service};
use crate::world::Flag;

/// The pause before it is made again.
const AGAIN: Duration = Duration::from_millis(100);

/// Keeps one open. `changes` is told when there is one, and when there is none any more.
pub(super) async fn listen<S: Service>(
    client: Arc<Client<S>>,
    changes: impl Fn(Option<&Arc<Connection<S>>>) + Send,
    hears: impl Fn(&Pushed) + Send,
) {
    let process = &client.config.process;
    let server = &client.config.server;
    loop {
        process
            .sleep(Connection::handshake(server, process.id))
            .await;
        if let Some(connection) = Connection::open(server, process.id) {
            let mut pushed = connection.listen();
            changes(Some(&connection));
            loop {
                tokio::select! {
                    biased;
                    told = pushed.recv() => match told {
                        Some(told) => hears(&told),
                        None => break,
                    },
                    () = connection.until_broken() => break,
                }
            }
            connection.close();
            changes(None);
        }
        process.sleep(AGAIN).await;
    }
}

/// Sets the flag while there is a connection.
pub(super) fn flags<S: Service>(
    listens: &Arc<Flag>,
    events: &Events,
) -> impl Fn(Option<&Arc<Connection<S>>>) + Send + use<S> {
    let (listens, events) = (Arc::clone(listens), events.clone());
    move |connection| {
        listens.set(connection.is_some());
        if connection.is_some() {
            // Until now nobody was told.
            events.missed();
        }
    }
}
