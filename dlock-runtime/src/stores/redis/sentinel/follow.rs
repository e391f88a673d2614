//! Follows the master when it moves.
//!
//! Connections break when a master dies, and each new one leads to where the sentinels say. But a
//! master that is cut off from its sentinels, and not from us, continues beside the one that has
//! replaced it. So each sentinel is listened to: it reports at once when it takes another server
//! for the master, and is also asked from time to time in case a report was missed. What one
//! sentinel reports is a cause to ask all of them.

use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind};
use tokio::sync::Notify;

use super::super::connector::Connector;
use super::super::locate::Locator;
use super::super::socket;
use super::Sentinels;
use crate::apart::all;
use crate::engine::time::Backoff;

/// How often a sentinel is asked that reports nothing by itself.
const PERIOD: Duration = Duration::from_secs(5);

const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The channel on which a sentinel reports that it takes another server for a master.
const SWITCHES: &str = "+switch-master";

/// Listens to all sentinels, without end.
pub(crate) async fn follow(connector: Arc<Connector>) {
    let Locator::Sentinels(sentinels) = &connector.locator else {
        return;
    };
    let nodes = 0..sentinels.nodes.len();
    all(nodes.map(|index| listen(&connector, sentinels, index))).await;
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

/// Listens over one connection until it breaks or falls silent. Returns whether there was any
/// answer.
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
            // The report may be about another master; then the question is useless but harmless.
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
        // Without the permission to subscribe, the questions must be enough.
        let _ = time.bound(soon(), connection.subscribe(SWITCHES)).await;
        loop {
            let answers = socket::send(&mut connection, &question);
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
                // `locate` stores what most sentinels say, and the connections watch that.
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
