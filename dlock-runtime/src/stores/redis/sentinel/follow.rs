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

use super::super::connector::Connector;
use super::super::locate::Locator;
use super::super::socket;
use super::Sentinels;
use crate::engine::time::Backoff;

/// How often a sentinel is asked that says nothing by itself.
const PERIOD: Duration = Duration::from_secs(5);

const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Where a sentinel says that it now takes another server for a master.
const SWITCHES: &str = "+switch-master";

/// Listens to all sentinels for ever.
pub(crate) async fn follow(connector: Arc<Connector>) {
    let Locator::Sentinels(sentinels) = &connector.locator else {
        return;
    };
    let nodes = 0..sentinels.nodes.len();
    join_all(nodes.map(|index| listen(&connector, sentinels, index))).await;
}

async fn listen(connector: &Connector, sentinels: &Sentinels, index: usize) {
    let mut backoff = Backoff::new(FIRST_PAUSE, PERIOD);
    loop {
        if listen_once(connector, sentinels, index).await {
            backoff.reset();
        }
        backoff.wait(&connector.time).await;
    }
}

/// Listens over one connection until it breaks or falls silent. Whether anything
/// was answered.
async fn listen_once(connector: &Connector, sentinels: &Sentinels, index: usize) -> bool {
    let Connector {
        time,
        settings,
        endpoint,
        ..
    } = connector;
    let soon = || time.after(settings.patience());
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
    let (sentinel, name) = (&sentinels.nodes[index], sentinels.endpoint(index));
    let opening = socket::open(sentinel, &sentinels.settings, &name, hear);
    let Ok(Ok((mut connection, driver))) = time.bound(soon(), opening).await else {
        return false;
    };
    let mut answered = false;
    let question = sentinels.question();
    let ask = async {
        // Without the right to subscribe, what it is asked must do.
        let _ = time.bound(soon(), connection.subscribe(SWITCHES)).await;
        loop {
            let answers = connection.send_packed_commands(&question, 0, question.len());
            let Ok(Ok(answers)) = time.bound(soon(), answers).await else {
                return;
            };
            let Ok(vote) = sentinels.read(index, answers) else {
                return;
            };
            answered = true;
            if let Some(master) = vote.master
                && sentinels.is_elsewhere(&master)
            {
                // What most of them say is heard by those who are connected.
                let _ = sentinels.locate(endpoint, time, soon()).await;
            }
            let _ = time.bound(time.after(PERIOD), switched.notified()).await;
        }
    };
    tokio::select! {
        () = driver => {}
        () = ask => {}
    }
    answered
}
