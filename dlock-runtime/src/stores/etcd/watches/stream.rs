//! The stream itself: kept while anybody listens, and made anew when it ends.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Error, WatchFilterType, WatchOptions, WatchResponse, WatchStream};

use super::Watches;
use super::message::{Meaning, Message};
use crate::stores::etcd::members::Member;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

struct Open {
    member: Arc<Member>,
    stream: WatchStream,
    /// The watches that the server has of us.
    on_server: HashSet<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Broken,
    Refused,
}

impl Watches {
    /// Keeps the stream while there is somebody to listen.
    pub(crate) async fn run(self: Arc<Self>) {
        let time = &self.members.time;
        let mut pause = FIRST_PAUSE;
        loop {
            let Some((id, key)) = self.first() else {
                self.changed.notified().await;
                continue;
            };
            if let Some(mut stream) = self.open(id, &key).await {
                let opened = time.now();
                let ended = self.serve(&mut stream).await;
                // What it has not said, it never will.
                self.all_ended();
                if ended == Ended::Broken && time.now() >= opened + pause {
                    pause = FIRST_PAUSE;
                    continue;
                }
            }
            time.sleep(time.after(pause)).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// The watch to begin with: all others are to be made too.
    fn first(&self) -> Option<(i64, Arc<str>)> {
        let mut inner = self.inner();
        inner.changed = inner.watched.keys().copied().collect();
        let (&id, watched) = inner.watched.first_key_value()?;
        Some((id, Arc::clone(&watched.key)))
    }

    async fn open(&self, id: i64, key: &str) -> Option<Open> {
        let members = &self.members;
        let member = members.current();
        let watching = async {
            let mut client = members.client(&member).await?;
            client.watch(key, options(id)).await
        };
        let Some(stream) = self.in_time(watching).await else {
            members.leave(&member);
            return None;
        };
        self.inner().heard = members.time.now();
        self.changed.notify_one();
        Some(Open {
            member,
            stream,
            on_server: HashSet::from([id]),
        })
    }

    /// Serves a stream until it says no more.
    async fn serve(&self, open: &mut Open) -> Ended {
        loop {
            tokio::select! {
                message = open.stream.message() => {
                    let Ok(Some(message)) = message else {
                        return Ended::Broken;
                    };
                    if self.is_refused(&message, &mut open.on_server) {
                        // The token that the stream was opened with may have ended:
                        // it is the stream's for ever.
                        if self.members.settings.has_user() {
                            self.in_time(self.log_in(&open.member)).await;
                        }
                        return Ended::Refused;
                    }
                    self.inner().heard = self.members.time.now();
                }
                () = self.changed.notified() => {
                    if self.in_time(self.catch_up(open)).await.is_none() {
                        self.members.leave(&open.member);
                        return Ended::Broken;
                    }
                }
                () = self.silent.notified() => return Ended::Broken,
            }
        }
    }

    /// Has the server watch what is watched now, and nothing else.
    async fn catch_up(&self, open: &mut Open) -> Result<(), Error> {
        let changed = std::mem::take(&mut self.inner().changed);
        for id in changed {
            let watched = self.inner().watched.get(&id).map(|it| Arc::clone(&it.key));
            match watched {
                Some(key) if open.on_server.insert(id) => {
                    open.stream.watch(&*key, options(id)).await?;
                }
                None if open.on_server.remove(&id) => open.stream.cancel(id).await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// `None`: it has failed, or takes too long.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let members = &self.members;
        let done = members.time.bound(members.patience(), work).await;
        done.ok()?.ok()
    }

    async fn log_in(&self, member: &Arc<Member>) -> Result<(), Error> {
        self.members.client(member).await?.refresh_token().await
    }

    /// Tells whom a message concerns. Whether the server will not watch for us.
    fn is_refused(&self, message: &WatchResponse, on_server: &mut HashSet<i64>) -> bool {
        let message = Message::of(message);
        match message.meaning(on_server) {
            Meaning::Refused => return true,
            Meaning::Nothing => {}
            Meaning::Since(revision) => self.made(message.id, revision),
            Meaning::Deleted(revision) => self.deleted(message.id, revision),
        }
        false
    }
}

/// A watch that begins now, and tells of deletions.
fn options(id: i64) -> Option<WatchOptions> {
    let options = WatchOptions::new().with_watch_id(id);
    Some(options.with_filters([WatchFilterType::NoPut]))
}
