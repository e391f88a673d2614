//! The members of the cluster, and one request to one of them.
//!
//! Requests go to one member for as long as it answers, and to the next when it
//! does not. The client's own balancing over all of them would send each third
//! request to a member that hangs.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::{Client, Error};
use tokio::sync::OnceCell;

use super::errors::{self, Failed, Verdict, verdict};
use super::settings::Settings;
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::engine::time::Time;
use crate::store::{Applied, Context};

/// The members of one cluster. Their connections live on the runtime that made
/// them, which is the manager's.
pub(super) struct Members {
    pub(super) settings: Settings,
    pub(super) time: Time,
    pub(super) request_timeout: Duration,
    patience: Duration,
    place: String,
    clients: Vec<Mutex<Arc<OnceCell<Client>>>>,
    current: AtomicUsize,
    events: Events,
}

/// An answer to a request.
pub(super) struct Answer<T> {
    pub(super) value: T,
    /// When the request was sent that was answered.
    pub(super) sent_at: Instant,
}

/// A member that is being asked.
pub(super) struct Asked {
    index: usize,
    cell: Arc<OnceCell<Client>>,
    pub(super) client: Client,
}

impl Members {
    pub(super) fn new(settings: Settings, context: Context) -> Self {
        Self {
            patience: context.patience(),
            request_timeout: context.request_timeout,
            place: settings.place(),
            clients: settings.hosts.iter().map(|_| Mutex::default()).collect(),
            // Not every process at the same one.
            current: AtomicUsize::new(fastrand::usize(..settings.hosts.len().max(1))),
            settings,
            time: context.time,
            events: context.events,
        }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// How long one answer may take.
    pub(super) fn patience(&self) -> Deadline {
        self.time.after(self.patience)
    }

    /// The same of what keeps a lease that lasts so long. It is asked for when a
    /// third has passed, and there is time left for a second attempt and a third.
    pub(super) fn patience_within(&self, ttl: Duration) -> Duration {
        self.patience.min(ttl / 4)
    }

    /// The member to ask. With a user, the first one to ask it logs in.
    pub(super) async fn client(&self) -> Result<Asked, Error> {
        let index = self.current.load(Ordering::Relaxed) % self.clients.len();
        let endpoint = self.settings.endpoint(&self.settings.hosts[index]);
        let connect = || {
            Client::connect(
                [endpoint],
                Some(self.settings.connect_options(self.patience)),
            )
        };
        let cell = Arc::clone(&*self.cell(index));
        match cell.get_or_try_init(connect).await {
            Ok(client) => Ok(Asked {
                index,
                client: client.clone(),
                cell: Arc::clone(&cell),
            }),
            Err(error) => {
                self.leave(index);
                Err(error)
            }
        }
    }

    /// Whether the next request goes there too.
    pub(super) fn is_current(&self, asked: &Asked) -> bool {
        self.current.load(Ordering::Relaxed) % self.clients.len() == asked.index
            && Arc::ptr_eq(&self.cell(asked.index), &asked.cell)
    }

    /// This member did not do what it was asked: the next request goes to the
    /// next one.
    pub(super) fn avoid(&self, asked: &Asked) {
        self.leave(asked.index);
    }

    /// This member gave no answer. Its connection may be dead without a word, and
    /// the client would go on with it: the next request makes another.
    pub(super) fn discard(&self, asked: &Asked) {
        self.leave(asked.index);
        let mut cell = self.cell(asked.index);
        if Arc::ptr_eq(&cell, &asked.cell) {
            *cell = Arc::default();
        }
    }

    fn cell(&self, index: usize) -> MutexGuard<'_, Arc<OnceCell<Client>>> {
        self.clients[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, index: usize) {
        let (next, order) = ((index + 1) % self.clients.len(), Ordering::Relaxed);
        // Another request may have left it already.
        let _ = self.current.compare_exchange(index, next, order, order);
    }

    /// Makes a request of one member.
    pub(super) async fn ask<T, F>(
        &self,
        deadline: Deadline,
        ask: impl FnOnce(Client) -> F,
    ) -> Result<Answer<T>, Failed>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.ask_within(self.patience, deadline, ask).await
    }

    /// The same, with so much time for the member.
    pub(super) async fn ask_within<T, F>(
        &self,
        patience: Duration,
        deadline: Deadline,
        ask: impl FnOnce(Client) -> F,
    ) -> Result<Answer<T>, Failed>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let limit = deadline.min(self.time.after(patience));
        let mut sent = None;
        // Boxed: the client's own futures are large, and stand in many of ours.
        let attempt = Box::pin(async {
            let asked = self.client().await?;
            let client = asked.client.clone();
            let sent_at = self.time.now();
            sent = Some((asked, sent_at));
            ask(client).await.map(|value| Answer { value, sent_at })
        });
        match self.time.bound(limit, attempt).await {
            Ok(Ok(answer)) => {
                self.events.heard(answer.sent_at);
                Ok(answer)
            }
            Ok(Err(error)) => Err(Box::pin(self.failed(&error, sent, limit)).await),
            Err(_) => match sent {
                Some((asked, sent_at)) => {
                    self.discard(&asked);
                    Err(Failed::silent(Applied::Unknown { sent_at }))
                }
                None => {
                    self.leave(self.current.load(Ordering::Relaxed));
                    Err(Failed::not_sent())
                }
            },
        }
    }

    /// What a member said of a request, or the client of one that it could not
    /// send.
    pub(super) async fn failed(
        &self,
        error: &Error,
        sent: Option<(Asked, Instant)>,
        limit: Deadline,
    ) -> Failed {
        let (verdict, mut applied) = (verdict(error), Applied::No);
        match (verdict, sent) {
            (Verdict::AskElsewhere, Some((asked, sent_at))) => {
                applied = Applied::Unknown { sent_at };
                self.avoid(&asked);
            }
            // If nobody answers that, the next attempt says so.
            (Verdict::LogIn, Some((asked, _))) => {
                let again = self.time.bound(limit, asked.client.refresh_token()).await;
                if let Ok(Err(error)) = again
                    && errors::verdict(&error) == Verdict::Refused
                {
                    let error = errors::described(&self.place, &error);
                    return Failed::new(Verdict::Refused, error, Applied::No);
                }
            }
            _ => {}
        }
        Failed::new(verdict, errors::described(&self.place, error), applied)
    }
}
