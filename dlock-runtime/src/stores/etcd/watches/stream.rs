//! The stream itself: kept while anybody listens, and made anew when it ends.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{WatchFilterType, WatchOptions, WatchResponse, WatchStream};

use super::Watches;
use super::message::{Meaning, Message};
use super::orders::{Order, Orders};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

struct Open {
    stream: WatchStream,
    /// The watches that the server has of us.
    on_server: HashSet<i64>,
}

#[derive(Clone, Copy)]
enum Ended {
    Broken,
    Refused,
}

impl Watches {
    /// Keeps the stream while there is somebody to listen.
    pub(crate) async fn run(self: Arc<Self>, mut orders: Orders) {
        let mut pause = FIRST_PAUSE;
        loop {
            // One that was made before has been noted with its key.
            while orders.0.try_recv().is_ok() {}
            if self.is_empty() {
                match orders.0.recv().await {
                    Some(_) => continue,
                    None => return,
                }
            }
            let time = &self.members.time;
            let Some(mut stream) = self.open().await else {
                time.sleep(time.after(pause)).await;
                pause = (pause * 2).min(LAST_PAUSE);
                continue;
            };
            let opened = time.now();
            let ended = self.serve(&mut stream, &mut orders).await;
            // What it has not said, it never will.
            self.all_ended();
            if matches!(ended, Ended::Refused) || time.now() < opened + pause {
                time.sleep(time.after(pause)).await;
                pause = (pause * 2).min(LAST_PAUSE);
            } else {
                pause = FIRST_PAUSE;
            }
        }
    }

    /// A stream that watches all keys of the moment.
    async fn open(&self) -> Option<Open> {
        let members = &self.members;
        let mut watched = self.watched().into_iter();
        let (id, key) = watched.next()?;
        let asked = self.in_time(members.client()).await?.ok()?;
        let mut client = asked.client.clone();
        let watching = client.watch(&*key, options(id));
        let stream = match members.time.bound(members.patience(), watching).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(_)) => {
                self.members.avoid(&asked);
                return None;
            }
            Err(_) => {
                self.members.discard(&asked);
                return None;
            }
        };
        let mut open = Open {
            stream,
            on_server: HashSet::from([id]),
        };
        for (id, key) in watched {
            let watching = open.stream.watch(&*key, options(id));
            if !matches!(self.in_time(watching).await, Some(Ok(()))) {
                self.members.discard(&asked);
                return None;
            }
            open.on_server.insert(id);
        }
        self.inner().heard = members.time.now();
        Some(open)
    }

    /// Serves a stream until it says no more.
    async fn serve(&self, open: &mut Open, orders: &mut Orders) -> Ended {
        loop {
            tokio::select! {
                message = open.stream.message() => match message {
                    Ok(Some(message)) => {
                        if self.refused(&message, open) {
                            // The token that the stream was opened with may
                            // have ended: it is the stream's for ever.
                            if self.members.settings.has_user() {
                                let _ = self.in_time(self.log_in()).await;
                            }
                            return Ended::Refused;
                        }
                        self.inner().heard = self.members.time.now();
                    }
                    Ok(None) | Err(_) => return Ended::Broken,
                },
                order = orders.0.recv() => {
                    let done = match order {
                        None => return Ended::Broken,
                        Some(Order::Watch(id)) => match self.watched_key(id) {
                            Some(key) if open.on_server.insert(id) => {
                                self.in_time(open.stream.watch(&*key, options(id))).await
                            }
                            _ => continue,
                        },
                        Some(Order::Cancel(id)) if open.on_server.remove(&id) => {
                            self.in_time(open.stream.cancel(id)).await
                        }
                        Some(Order::Cancel(_)) => continue,
                    };
                    if !matches!(done, Some(Ok(()))) {
                        return Ended::Broken;
                    }
                }
                () = self.silent.notified() => return Ended::Broken,
            }
        }
    }

    /// `None`: it takes too long.
    async fn in_time<F: Future>(&self, work: F) -> Option<F::Output> {
        let members = &self.members;
        members.time.bound(members.patience(), work).await.ok()
    }

    async fn log_in(&self) {
        if let Ok(asked) = self.members.client().await {
            let _ = asked.client.refresh_token().await;
        }
    }

    /// Tells whom a message concerns. Whether the server will not watch for us.
    fn refused(&self, message: &WatchResponse, open: &mut Open) -> bool {
        let message = Message::of(message);
        match message.meaning(&mut open.on_server) {
            Meaning::Refused => return true,
            Meaning::Nothing => {}
            Meaning::Since(revision) => self.made(message.id, revision),
            Meaning::Deleted(revision) => self.deleted(message.id, revision),
            Meaning::Ended => self.ended(message.id),
        }
        false
    }

    fn watched(&self) -> Vec<(i64, Arc<str>)> {
        let inner = self.inner();
        let keys = inner.by_id.iter();
        keys.map(|(id, key)| (*id, Arc::clone(key))).collect()
    }

    fn watched_key(&self, id: i64) -> Option<Arc<str>> {
        self.inner().by_id.get(&id).cloned()
    }
}

/// A watch that begins now, and tells of deletions.
fn options(id: i64) -> Option<WatchOptions> {
    let options = WatchOptions::new().with_watch_id(id);
    Some(options.with_filters([WatchFilterType::NoPut]))
}
