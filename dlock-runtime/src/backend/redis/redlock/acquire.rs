//! Taking a lock: elections, until one is won.
//!
//! After an election that was lost another is held: after a random pause if
//! nobody has a majority, since those who asked at the same time must not do so
//! again; and else when the holder's release is heard of.

use std::time::Duration;

use super::common::Common;
use super::election::{Campaign, Election};
use super::waiters::Waiting;
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, Grant, Request};

/// The window from which the pause after a split vote is drawn. It doubles each
/// time.
const FIRST_PAUSE: Duration = Duration::from_millis(3);
const LAST_PAUSE: Duration = Duration::from_millis(250);

/// Who only tries takes so many split votes for a lock that is held.
const TRIES: u32 = 10;

/// A release reaches the nodes one after the other: how long a waiter that was
/// woken by the first waits for the others.
const RELEASE_SPREADS: Duration = Duration::from_millis(20);

impl Common {
    pub(crate) async fn try_acquire(
        &self,
        request: &Request,
    ) -> Result<Option<Grant>, BackendError> {
        let mut campaign = Campaign::default();
        let mut pauses = Pauses::new(Deadline::after(self.request_timeout));
        loop {
            match self.elect(request, &mut campaign, pauses.deadline).await? {
                Election::Won(grant) => return Ok(Some(grant)),
                Election::Held => return Ok(None),
                Election::Split if pauses.count >= TRIES => return Ok(None),
                Election::Split => {}
                Election::NoQuorum(error) if pauses.have_ended() => return Err(error),
                Election::NoQuorum(_) => {}
            }
            self.clock.sleep(pauses.next()).await;
        }
    }

    pub(crate) async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        let timeout = self.request_timeout;
        let mut campaign = Campaign::default();
        let mut pauses = Pauses::new(Deadline::after(timeout));
        let mut waiting = None;
        loop {
            if let Some(waiting) = &waiting {
                Waiting::forget_what_was_heard(waiting);
            }
            match self.elect(request, &mut campaign, pauses.deadline).await? {
                Election::Won(grant) => return Ok(grant),
                Election::Split => {
                    pauses.deadline = Deadline::after(timeout);
                    self.clock.sleep(pauses.next()).await;
                }
                Election::NoQuorum(error) if pauses.have_ended() => return Err(error),
                Election::NoQuorum(_) => self.clock.sleep(pauses.next()).await,
                Election::Held => match &waiting {
                    // What was released before somebody listened was not heard:
                    // so the nodes are asked once more.
                    None => {
                        let entered = self.waiters.enter(request);
                        let limit = Deadline::after(self.patience_for(request.ttl));
                        let _ = self.clock.bound(limit, entered.listening()).await;
                        waiting = Some(entered);
                        pauses = Pauses::new(Deadline::after(timeout));
                    }
                    Some(waiting) => {
                        if waiting.woken().await {
                            let limit = Deadline::after(RELEASE_SPREADS);
                            let _ = self.clock.bound(limit, waiting.freed_by_majority()).await;
                        }
                        // Until their silence has lasted for the request timeout,
                        // but long enough for new connections in any case.
                        let silence = Deadline::from(self.waiters.last_heard(), timeout);
                        pauses = Pauses::new(silence.max(Deadline::after(timeout / 4)));
                    }
                },
            }
        }
    }
}

/// The pauses between elections: drawn from the whole of a window that doubles,
/// so that of several who collide one goes first.
struct Pauses {
    deadline: Deadline,
    window: Duration,
    count: u32,
}

impl Pauses {
    fn new(deadline: Deadline) -> Self {
        Self {
            deadline,
            window: FIRST_PAUSE,
            count: 0,
        }
    }

    fn next(&mut self) -> Deadline {
        let pause = self.window.mul_f64(fastrand::f64());
        self.window = (2 * self.window).min(LAST_PAUSE);
        self.count += 1;
        Deadline::after(pause)
    }

    fn have_ended(&self) -> bool {
        self.deadline.has_passed()
    }
}
