//! Goes with the master when it moves.
//!
//! Connections break when a master dies, and each new one is made to where the
//! sentinels say. But one that was cut off from its sentinels, and not from
//! us, goes on as if nothing had happened, next to the one that has replaced
//! it. So the sentinels are listened to: each tells at once that it takes
//! another server for the master, and is asked now and then in case that was
//! missed. What one of them says is cause to ask them all.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{PushInfo, PushKind};
use tokio::sync::Notify;

use super::super::connections::Connections;
use super::super::connector::Connector;
use super::super::locate::Locator;
use super::super::socket;
use super::Sentinels;
use crate::deadline::Deadline;
use crate::engine::time::Backoff;
use crate::stores::address::Address;

/// How often a sentinel is asked that says nothing by itself.
const PERIOD: Duration = Duration::from_secs(5);

const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Where a sentinel says that it now takes another server for a master.
const SWITCHES: &str = "+switch-master";

/// Gives up the connections to what is not the master any more.
pub(crate) async fn follow(connector: Arc<Connector>, connections: Vec<Arc<Connections>>) {
    let Locator::Sentinels(sentinels) = &connector.locator else {
        return;
    };
    let follower = Follower {
        sentinels: Arc::clone(sentinels),
        connector: Arc::clone(&connector),
        connections,
    };
    join_all((0..sentinels.nodes.len()).map(|index| follower.listen(index))).await;
}

struct Follower {
    sentinels: Arc<Sentinels>,
    connector: Arc<Connector>,
    connections: Vec<Arc<Connections>>,
}

impl Follower {
    /// Listens to one sentinel for ever.
    async fn listen(&self, index: usize) {
        let mut backoff = Backoff::new(FIRST_PAUSE, PERIOD);
        loop {
            if self.listen_once(index).await {
                backoff.reset();
            }
            backoff.wait(&self.connector.clock).await;
        }
    }

    /// Listens over one connection until it breaks or falls silent. Whether
    /// anything was heard.
    async fn listen_once(&self, index: usize) -> bool {
        let Connector {
            clock, settings, ..
        } = &*self.connector;
        let soon = || Deadline::after(settings.patience());
        let switched = Arc::new(Notify::new());
        let hear = {
            let switched = Arc::clone(&switched);
            move |push: &PushInfo| {
                // If it is of another master, it is asked in vain.
                if push.kind == PushKind::Message {
                    switched.notify_one();
                }
            }
        };
        let (sentinel, place) = (&self.sentinels.nodes[index], self.sentinels.place(index));
        let opening = socket::open(sentinel, &self.sentinels.settings, &place, hear);
        let Ok(Ok((mut connection, driver))) = clock.bound(soon(), opening).await else {
            return false;
        };
        let mut heard = false;
        let question = self.sentinels.question();
        let ask = async {
            // Without the right to subscribe, what it is asked must do.
            let _ = clock.bound(soon(), connection.subscribe(SWITCHES)).await;
            loop {
                let answers = connection.send_packed_commands(&question, 0, question.len());
                let Ok(Ok(answers)) = clock.bound(soon(), answers).await else {
                    return;
                };
                let Ok(vote) = self.sentinels.read(index, answers) else {
                    return;
                };
                heard = true;
                if let Some(master) = vote.master {
                    self.may_be_at(&master).await;
                }
                tokio::select! {
                    () = switched.notified() => {}
                    () = tokio::time::sleep(PERIOD) => {}
                }
            }
        };
        tokio::select! {
            () = driver => {}
            () = ask => {}
        }
        heard
    }

    /// One of the sentinels says that the master is there.
    async fn may_be_at(&self, master: &Address) {
        let leads_elsewhere = |all: &Arc<Connections>| !all.leads_elsewhere(master).is_empty();
        if !self.connections.iter().any(leads_elsewhere) {
            return;
        }
        // The connection may be newer than what was said.
        let Connector {
            place,
            clock,
            settings,
            ..
        } = &*self.connector;
        let deadline = Deadline::after(settings.patience());
        let Ok(master) = self.sentinels.locate(place, clock, deadline).await else {
            return;
        };
        let mut given_up = 0;
        for connection in self
            .connections
            .iter()
            .flat_map(|all| all.leads_elsewhere(&master))
        {
            connection.discard();
            given_up += 1;
        }
        if given_up > 0 {
            tracing::info!(
                target: "dlock::store",
                "redis master `{}` is at {master} now, say its sentinels",
                self.sentinels.master()
            );
        }
    }
}
