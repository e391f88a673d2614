//! The members of the cluster, and one request to it.
//!
//! Requests go to one member for as long as it answers, and to the next when it
//! does not. The client's own balancing over all of them would send each third
//! request to a member that hangs.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Error};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout_at};

use super::errors::{self, Verdict, verdict};
use super::settings::Settings;
use crate::backend::BackendError;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(250);

/// The members of one cluster. Their connections live on the runtime that made
/// them, which is the manager's.
pub(super) struct Members {
    pub(super) settings: Settings,
    place: String,
    clients: Vec<Mutex<Arc<OnceCell<Client>>>>,
    current: AtomicUsize,
    /// When a member last answered, whatever it said.
    heard: Mutex<Instant>,
}

/// An answer to a request.
pub(super) struct Answer<T> {
    pub(super) value: T,
    /// When the request was sent that was answered.
    pub(super) sent_at: Instant,
    /// It was sent before, and whether that was done, or will yet be done, is
    /// not known.
    pub(super) repeated: bool,
}

/// Why there is no answer.
pub(super) struct Failure {
    pub(super) error: BackendError,
    pub(super) verdict: Verdict,
    /// It was sent, and whether it was done is not known.
    pub(super) unanswered: bool,
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// A member that is being asked.
pub(super) struct Asked {
    index: usize,
    cell: Arc<OnceCell<Client>>,
    pub(super) client: Client,
}

impl Members {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            place: settings.place(),
            clients: settings.hosts.iter().map(|_| Mutex::default()).collect(),
            // Not every process at the same one.
            current: AtomicUsize::new(fastrand::usize(..settings.hosts.len().max(1))),
            settings,
            heard: Mutex::new(Instant::now()),
        }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn last_heard(&self) -> Instant {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request that was sent then has been answered.
    pub(super) fn heard(&self, sent_at: Instant) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        *heard = sent_at.max(*heard);
    }

    /// The member to ask. With a user, the first one to ask it logs in.
    pub(super) async fn client(&self) -> Result<Asked, Error> {
        let index = self.current.load(Ordering::Relaxed) % self.clients.len();
        let endpoint = self.settings.endpoint(&self.settings.hosts[index]);
        let connect = || Client::connect([endpoint], Some(self.settings.connect_options()));
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

    /// Makes a request within the request timeout.
    pub(super) async fn call<T, F>(&self, ask: impl Fn(Client) -> F) -> Result<Answer<T>, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let now = Instant::now();
        self.call_until(now, now + self.settings.request_timeout, ask)
            .await
    }

    /// Makes a request, again and again until there is an answer or it is too
    /// late. It must do no harm when it is done twice. `since` is when the
    /// silence began, for messages.
    pub(super) async fn call_until<T, F>(
        &self,
        since: Instant,
        deadline: Instant,
        ask: impl Fn(Client) -> F,
    ) -> Result<Answer<T>, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.call_with(self.settings.patience(), since, deadline, ask)
            .await
    }

    /// The same, with so much time for each member.
    pub(super) async fn call_with<T, F>(
        &self,
        patience: Duration,
        since: Instant,
        deadline: Instant,
        ask: impl Fn(Client) -> F,
    ) -> Result<Answer<T>, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut pause = FIRST_PAUSE;
        let mut repeated = false;
        loop {
            let limit = deadline.min(Instant::now() + patience);
            let mut sent = None;
            let attempt = async {
                let asked = self.client().await?;
                let client = asked.client.clone();
                let sent_at = Instant::now();
                sent = Some(asked);
                ask(client).await.map(|value| (value, sent_at))
            };
            let (error, verdict) = match timeout_at(limit, attempt).await {
                Ok(Ok((value, sent_at))) => {
                    self.heard(sent_at);
                    return Ok(Answer {
                        value,
                        sent_at,
                        repeated,
                    });
                }
                Ok(Err(error)) => {
                    let verdict = verdict(&error);
                    match (verdict, &sent) {
                        // If nobody answers that, the next attempt says so.
                        (Verdict::LogIn, Some(asked)) => {
                            let again = timeout_at(limit, asked.client.refresh_token()).await;
                            if let Ok(Err(error)) = again
                                && errors::verdict(&error) == Verdict::Refused
                            {
                                return Err(Failure {
                                    error: errors::described(&self.place, &error),
                                    verdict: Verdict::Refused,
                                    unanswered: repeated,
                                });
                            }
                        }
                        (Verdict::AskElsewhere, Some(asked)) => {
                            repeated = true;
                            self.avoid(asked);
                        }
                        _ => {}
                    }
                    (errors::described(&self.place, &error), verdict)
                }
                Err(_) => {
                    match &sent {
                        Some(asked) => {
                            repeated = true;
                            self.discard(asked);
                        }
                        None => self.leave(self.current.load(Ordering::Relaxed)),
                    }
                    let error = errors::silent(&self.place, since.elapsed());
                    (error, Verdict::AskElsewhere)
                }
            };
            let failure = Failure {
                error,
                verdict,
                unanswered: repeated,
            };
            let again = matches!(verdict, Verdict::AskElsewhere | Verdict::LogIn);
            if !again || Instant::now() + pause >= deadline {
                return Err(failure);
            }
            // Those who failed together must not return together.
            sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
}
