//! Goes with the master when it moves.
//!
//! Connections break when a master dies, and each new one is made to where the
//! sentinels say. But one that was cut off from its sentinels, and not from
//! us, goes on as if nothing had happened, next to the one that has replaced
//! it. So the sentinels are listened to: each tells at once that it takes
//! another server for the master, and is asked now and then in case that was
//! missed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::connections::Connections;
use super::super::connector::Connector;
use super::super::line::Line;
use super::Sentinels;
use super::ask::{SWITCHES, is_switch};
use super::votes::Votes;
use crate::deadline::{Backoff, Deadline};

/// How often a sentinel is asked that says nothing by itself.
const PERIOD: Duration = Duration::from_secs(5);

const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What the sentinels have said last.
struct News {
    votes: Mutex<Votes>,
    changed: Notify,
}

impl News {
    fn change(&self, change: impl FnOnce(&mut Votes)) {
        change(&mut self.votes.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }
}

/// Gives up the connections to what is not the master any more, until the
/// backend stops.
pub(crate) async fn follow(
    sentinels: Arc<Sentinels>,
    connector: Arc<Connector>,
    connections: Vec<Arc<Connections>>,
    stopping: CancellationToken,
) {
    let news = Arc::new(News {
        votes: Mutex::new(Votes::new(sentinels.nodes.len())),
        changed: Notify::new(),
    });
    let mut listening = JoinSet::new();
    for index in 0..sentinels.nodes.len() {
        listening.spawn(listen(
            Arc::clone(&sentinels),
            index,
            Arc::clone(&connector),
            Arc::clone(&news),
        ));
    }
    loop {
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = news.changed.notified() => {}
        }
        let master = {
            let votes = news.votes.lock().unwrap_or_else(PoisonError::into_inner);
            votes.winner().cloned()
        };
        let elsewhere = |master: &_| connections.iter().any(|all| all.any_not_to(master));
        let Some(master) = master.filter(elsewhere) else {
            continue;
        };
        // The connection may be newer than what was said.
        let Connector { place, clock, .. } = &*connector;
        let deadline = Deadline::after(connector.settings.patience());
        let located = sentinels.locate(place, clock, deadline).await;
        if located.is_ok_and(|located| located == master) {
            for connections in &connections {
                connections.keep_only(&master);
            }
            tracing::info!(
                target: "dlock::store",
                "redis master `{}` is at {master} now, say its sentinels",
                sentinels.master()
            );
        }
    }
}

/// Listens to one sentinel for ever.
async fn listen(
    sentinels: Arc<Sentinels>,
    index: usize,
    connector: Arc<Connector>,
    news: Arc<News>,
) {
    let new_backoff = || Backoff::new(FIRST_PAUSE, PERIOD);
    let mut backoff = new_backoff();
    loop {
        if listen_once(&sentinels, index, &connector, &news).await {
            backoff = new_backoff();
        }
        // What it said before does not count for ever.
        news.change(|votes| votes.clear(index));
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Listens over one connection until it breaks or falls silent. Whether
/// anything was heard.
async fn listen_once(
    sentinels: &Sentinels,
    index: usize,
    connector: &Connector,
    news: &News,
) -> bool {
    let clock = &connector.clock;
    let soon = || Deadline::after(connector.settings.patience());
    let switched = Arc::new(Notify::new());
    let hear = {
        let (switched, master) = (Arc::clone(&switched), sentinels.master().to_owned());
        move |push: &_| {
            if is_switch(push, &master) {
                switched.notify_one();
            }
        }
    };
    let Ok(Ok(line)) = clock.bound(soon(), sentinels.call(index, hear)).await else {
        return false;
    };
    let Line {
        mut connection,
        driver,
    } = line;
    let mut heard = false;
    let ask = async {
        // Without the right to subscribe, what it is asked must do.
        let _ = clock.bound(soon(), connection.subscribe(SWITCHES)).await;
        loop {
            let vote = clock.bound(soon(), sentinels.question(index, &mut connection));
            let Ok(Ok(vote)) = vote.await else {
                return;
            };
            heard = true;
            news.change(|votes| votes.set(index, Ok(vote)));
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
