//! Keeping leases alive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client, Error, LeaseKeepAliveStream, LeaseKeeper};

use super::{Lease, Leases, Slot};
use crate::deadline::{Backoff, Deadline};
use crate::in_flight::Counted;
use crate::stores::etcd::errors::{Verdict, verdict};
use crate::stores::etcd::members::Asked;

/// How often a lease is kept alive while it lasts once.
const BEATS: u32 = 3;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

impl Leases {
    /// The life of a lease.
    pub(super) async fn keep(self: Arc<Self>, lease: Arc<Lease>, _counted: Counted) {
        let end = self.beat_while_used(&lease).await;
        let has_ended = match end {
            End::Leave => true,
            End::GiveUp => false,
            End::Revoke => self.revoke(&lease).await,
        };
        if !has_ended {
            // What is attached to it may be there yet, or may come.
            self.places.start_anew();
        }
        lease.end();
        self.alive().remove(&lease.scope());
        self.events.ended(lease.scope());
        let is_this = |slot: &Slot| slot.get().is_some_and(|other| other.id() == lease.id());
        self.slots().retain(|_, slot| !is_this(slot));
        if end == End::GiveUp {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => {}
                _ = self.revoke_late(&lease) => {}
            }
        }
    }

    async fn beat_while_used(&self, lease: &Lease) -> End {
        let time = &self.members.time;
        let until = |instant| time.sleep(Deadline::from(instant, Duration::ZERO));
        let mut stream = Stream::default();
        let mut pause = FIRST_PAUSE;
        let Some(mut confirmed) = lease.confirmed() else {
            return End::Leave;
        };
        let mut next = confirmed + lease.ttl() / BEATS;
        loop {
            let ends = confirmed + lease.ttl();
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return End::Revoke,
                () = lease.gone() => return End::Leave,
                () = until(ends) => return End::GiveUp,
                () = lease.unused() => return End::Revoke,
                () = until(next) => {}
                () = lease.demanded() => {}
            }
            let patience = self.members.patience_within(lease.ttl());
            let limit = Deadline::from(ends, Duration::ZERO).min(time.after(patience));
            let beat = time.bound(limit, Box::pin(self.beat(lease, &mut stream)));
            let answer = tokio::select! {
                biased;
                () = self.stopping.cancelled() => return End::Revoke,
                answer = beat => answer,
            };
            match answer {
                Ok(Ok(sent_at)) => {
                    self.events.heard(sent_at);
                    confirmed = sent_at;
                    lease.confirm(sent_at);
                    pause = FIRST_PAUSE;
                    next = sent_at + lease.ttl() / BEATS;
                }
                Ok(Err(Verdict::LeaseNotFound)) => return End::Leave,
                failed => {
                    // The next one goes out over another stream.
                    match std::mem::take(&mut stream).asked {
                        Some(asked) if failed.is_err() => self.members.discard(&asked),
                        Some(asked) => self.members.avoid(&asked),
                        None => {}
                    }
                    next = time.now() + pause;
                    pause = (pause * 2).min(LAST_PAUSE).min(lease.ttl() / 10);
                }
            }
        }
    }

    /// Keeps the lease alive once: when the request was sent.
    ///
    /// It goes where other requests go: a leader that was replaced, and stands
    /// still, confirms leases which it does not keep any more, but it cannot
    /// answer those (etcd issue 15247).
    async fn beat(&self, lease: &Lease, stream: &mut Stream) -> Result<Instant, Verdict> {
        if let Some(asked) = &stream.asked
            && !self.members.is_current(asked)
        {
            *stream = Stream::default();
        }
        if let Some((keeper, answers)) = &mut stream.open {
            let sent_at = self.members.time.now();
            keeper.keep_alive().await.map_err(|e| verdict(&e))?;
            return match answers.message().await.map_err(|e| verdict(&e))? {
                Some(answer) if answer.ttl() > 0 => Ok(sent_at),
                Some(_) => Err(Verdict::LeaseNotFound),
                None => Err(Verdict::AskElsewhere),
            };
        }
        let asked = self.members.client().await.map_err(|e| verdict(&e))?;
        let mut client = asked.client.clone();
        stream.asked = Some(asked);
        let sent_at = self.members.time.now();
        match client.lease_keep_alive(lease.id()).await {
            Ok(open) => {
                stream.open = Some(open);
                Ok(sent_at)
            }
            Err(Error::LeaseKeepAliveError(text)) if text.contains("not found") => {
                Err(Verdict::LeaseNotFound)
            }
            Err(error) => {
                let verdict = verdict(&error);
                if verdict == Verdict::LogIn {
                    // Should it fail, so will the next beat.
                    let _ = client.refresh_token().await;
                }
                Err(verdict)
            }
        }
    }

    /// Ends a lease and all that is attached to it, if the server can be reached
    /// before it ends by itself. Whether it has ended.
    async fn revoke(&self, lease: &Lease) -> bool {
        let Some(confirmed) = lease.confirmed() else {
            return true;
        };
        let mut ends = Deadline::from(confirmed, lease.ttl());
        if self.stopping.is_cancelled() {
            let timeout = self.members.request_timeout;
            ends = ends.min(self.members.time.after(timeout));
        }
        self.revoke_until(lease, ends).await
    }

    /// The same for a lease that was given up. The server may keep it for longer:
    /// it has heard what it could not answer, or a new leader has let it begin
    /// anew. So what was waited for and held under it would be in the way of
    /// others.
    async fn revoke_late(&self, lease: &Lease) -> bool {
        let wait = lease.ttl() + self.members.request_timeout;
        self.revoke_until(lease, self.members.time.after(wait))
            .await
    }

    async fn revoke_until(&self, lease: &Lease, deadline: Deadline) -> bool {
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
            let again = time.after(backoff.pause());
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
    Leave,
    /// Nobody has confirmed it for as long as it lasts.
    GiveUp,
    Revoke,
}

/// The stream on which a lease is kept alive.
#[derive(Default)]
struct Stream {
    /// Whoever it goes to.
    asked: Option<Asked>,
    open: Option<(LeaseKeeper, LeaseKeepAliveStream)>,
}
