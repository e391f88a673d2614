//! Keeping leases alive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::Client;

use super::{Lease, Leases};
use crate::deadline::Deadline;
use crate::engine::time::Backoff;
use crate::in_flight::Counted;
use crate::stores::etcd::errors::Verdict;

/// How often a lease is kept alive while it lasts once.
const BEATS: u32 = 3;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

impl Leases {
    /// The life of a lease.
    pub(super) async fn keep(self: Arc<Self>, lease: Arc<Lease>, _counted: Counted) {
        let end = self.beat_while_used(&lease).await;
        let has_ended = match end {
            End::Left => true,
            End::GivenUp => false,
            End::Unused { lasts_until } => self.revoke(&lease, lasts_until).await,
        };
        if !has_ended {
            // What is attached to it may be there yet, or may come.
            self.places.start_anew();
        }
        lease.end();
        self.alive().remove(&lease.scope());
        self.members.context.events.ended(lease.scope());
        if end == End::GivenUp {
            // The server may keep it for longer: it has heard what it could not
            // answer, or a new leader has let it begin anew. What was waited for and
            // held under it would be in the way of others.
            let longer = lease.ttl + self.members.context.request_timeout;
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => {}
                _ = self.revoke(&lease, self.members.time.after(longer)) => {}
            }
        }
    }

    async fn beat_while_used(&self, lease: &Lease) -> End {
        let time = &self.members.time;
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        let Some(mut confirmed) = lease.confirmed() else {
            return End::Left;
        };
        let mut next = Deadline::from(confirmed, lease.ttl / BEATS);
        loop {
            let lasts_until = Deadline::from(confirmed, lease.ttl);
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return End::Unused { lasts_until },
                () = lease.gone() => return End::Left,
                () = time.sleep(lasts_until) => return End::GivenUp,
                () = time.sleep(next) => {}
                () = lease.demanded() => {}
            }
            if lease.is_unused() {
                return End::Unused { lasts_until };
            }
            let patience = time.after(self.members.patience_within(lease.ttl));
            let beat = Box::pin(self.beat(lease, lasts_until.min(patience)));
            let answer = tokio::select! {
                biased;
                () = self.stopping.cancelled() => return End::Unused { lasts_until },
                answer = beat => answer,
            };
            match answer {
                Ok(sent_at) => {
                    confirmed = sent_at;
                    lease.confirm(sent_at);
                    backoff.reset();
                    next = Deadline::from(sent_at, lease.ttl / BEATS);
                }
                Err(Verdict::LeaseNotFound) => return End::Left,
                Err(_) => next = time.after(backoff.pause(time).min(lease.ttl / 10)),
            }
        }
    }

    /// Keeps the lease alive once: when the request was sent.
    ///
    /// It goes where other requests go: a leader that was replaced, and stands
    /// still, confirms leases which it does not keep any more, but it cannot
    /// answer those (etcd issue 15247).
    async fn beat(&self, lease: &Lease, limit: Deadline) -> Result<Instant, Verdict> {
        let (id, sent_at) = (lease.id(), self.members.time.now());
        // The call is a stream, on which this is the first message.
        let once = |mut client: Client| async move { client.lease_keep_alive(id).await };
        let answer = self.members.ask_one(limit, once).await;
        answer.map(|_| sent_at).map_err(|failed| failed.verdict)
    }

    /// Ends a lease and all that is attached to it. Whether it has ended, which it
    /// may do by itself.
    async fn revoke(&self, lease: &Lease, deadline: Deadline) -> bool {
        let (id, time) = (lease.id(), &self.members.time);
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        loop {
            let revoke = |mut client: Client| async move { client.lease_revoke(id).await };
            match self.members.ask(deadline, revoke).await {
                Ok(_) => return true,
                Err(failed) => match failed.verdict {
                    Verdict::LeaseNotFound => return true,
                    Verdict::Refused => return false,
                    Verdict::AskElsewhere | Verdict::LogIn => {}
                },
            }
            let again = time.after(backoff.pause(time));
            if again >= deadline {
                return false;
            }
            time.sleep(again).await;
        }
    }
}

/// How a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It has ended.
    Left,
    /// Nobody has confirmed it for as long as it lasts.
    GivenUp,
    /// It is to be revoked.
    Unused { lasts_until: Deadline },
}
