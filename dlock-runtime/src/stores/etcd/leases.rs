//! The leases of this process. They are shared by all requests with the same ttl, kept alive while
//! anybody uses them, and given up when they have not been confirmed for as long as they last.
//!
//! Only the last confirmation shows what the server knows of a lease: a stream that stalls gives no
//! error.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client, LeaseGrantOptions, LeaseGrantResponse};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::errors::{ErrorClass, Failed, unexpected_answer};
use super::lease::{Lease, LeaseRef};
use super::members::Members;
use crate::deadline::Deadline;
use crate::duration::seconds_up;
use crate::engine::time::Backoff;
use crate::in_flight::{Counted, InFlight};
use crate::store::{Applied, Failure, Scope};
use crate::sync::Mutex;

/// How often a lease is kept alive during its ttl.
const BEATS: u32 = 3;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// The longest ttl that etcd takes (`MaxLeaseTTL` in `lease/lessor.go`).
const LONGEST_TTL: i64 = 9_000_000_000;

/// All leases of a backend.
pub(super) struct Leases {
    members: Arc<Members>,
    /// The leases that have not ended.
    alive: Mutex<HashMap<Scope, Arc<Lease>>>,
    /// Locked while a lease is granted, so that requests that begin together share one.
    granting: tokio::sync::Mutex<()>,
    stopping: CancellationToken,
    kept: InFlight,
}

impl Leases {
    pub(super) fn new(members: Arc<Members>) -> Arc<Self> {
        Arc::new(Self {
            members,
            alive: Mutex::default(),
            granting: tokio::sync::Mutex::default(),
            stopping: CancellationToken::new(),
            kept: InFlight::default(),
        })
    }

    /// The lease that all requests with this ttl share (in whole seconds, as etcd counts); or a
    /// `private` one, which is revoked when its only request has left.
    pub(super) async fn take(
        self: &Arc<Self>,
        ttl: Duration,
        private: bool,
        deadline: Deadline,
    ) -> Result<LeaseRef, Failure> {
        let seconds = seconds(ttl);
        if let Some(shared) = self.shared(seconds, private) {
            return Ok(shared);
        }
        let leases = Arc::clone(self);
        let (done, answer) = oneshot::channel();
        // This runs to its end, so that a caller with little time finds the lease at its next
        // attempt.
        self.members.time.spawn(async move {
            let _ = done.send(leases.begin(seconds, private, deadline).await);
        });
        answer.await.unwrap_or_else(|_| Err(Failure::not_sent()))
    }

    /// Grants a lease that is not kept alive. Returns it, and when it was asked for.
    pub(super) async fn grant(
        &self,
        seconds: i64,
        deadline: Deadline,
    ) -> Result<(LeaseGrantResponse, Instant), Failure> {
        let sent_at = self.members.time.now();
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        match self.members.ask(deadline, grant).await {
            // No server does this. A lock would end before its time.
            Ok(granted) if granted.id() == 0 || granted.ttl() < seconds => {
                Err(unexpected_answer(&self.members.settings.place()).with(Applied::No))
            }
            Ok(granted) => Ok((granted, sent_at)),
            // If the answer is lost, the lease ends by itself, with nothing attached.
            Err(failed) => Err(Failure::from(failed).with(Applied::No)),
        }
    }

    /// Grants a lease that has this id and is not kept alive. Its time begins now, even if an
    /// earlier attempt has granted it already.
    pub(super) async fn grant_as(
        &self,
        id: i64,
        seconds: i64,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        loop {
            let options = LeaseGrantOptions::new().with_id(id);
            let grant = |mut client: Client| async move {
                client.lease_grant(seconds, Some(options)).await
            };
            let answer = match self.members.ask(deadline, grant).await {
                Ok(_) => return Ok(()),
                Err(failed) if failed.class == ErrorClass::LeaseExists => {
                    let limit = deadline.min(self.members.patience());
                    self.keep_alive(id, limit).await
                }
                Err(failed) => Err(failed),
            };
            match answer {
                Ok(()) => return Ok(()),
                // The lease has ended in between.
                Err(failed) if failed.class == ErrorClass::LeaseNotFound => {}
                Err(failed) => return Err(Failure::from(failed).with(Applied::No)),
            }
        }
    }

    /// Grants a lease, and keeps it alive.
    async fn begin(
        self: &Arc<Self>,
        asked_for: i64,
        private: bool,
        deadline: Deadline,
    ) -> Result<LeaseRef, Failure> {
        let time = &self.members.time;
        let mut _alone = None;
        if !private {
            let alone = time.bound(deadline, self.granting.lock()).await;
            _alone = Some(alone.map_err(|_| Failure::not_sent())?);
        }
        if let Some(shared) = self.shared(asked_for, private) {
            return Ok(shared);
        }
        let (granted, sent_at) = self.grant(asked_for, deadline).await?;
        let (id, ttl) = (granted.id(), granted.ttl().unsigned_abs());
        let ttl = Duration::from_secs(ttl);
        let first = Lease::begin(id, asked_for, ttl, private, sent_at, time.clone());
        let lease = Arc::clone(&first.lease);
        self.alive.lock().insert(lease.scope(), Arc::clone(&lease));
        time.spawn(Arc::clone(self).keep(lease, self.kept.count()));
        Ok(first)
    }

    /// A lease that others have already.
    fn shared(&self, asked_for: i64, private: bool) -> Option<LeaseRef> {
        let alive = self.alive.lock();
        let is_same = |lease: &&Arc<Lease>| !private && lease.asked_for == asked_for;
        alive.values().filter(is_same).find_map(Lease::enter)
    }

    /// Whether a lease has ended, or must be taken to have.
    pub(super) fn has_ended(&self, scope: Scope) -> bool {
        !self.alive.lock().contains_key(&scope)
    }

    /// Revokes all leases.
    pub(super) async fn stop(&self, deadline: Deadline) {
        self.stopping.cancel();
        let time = &self.members.time;
        let _ = time.bound(deadline, self.kept.wait_idle()).await;
    }

    /// Keeps a lease alive, and ends it.
    async fn keep(self: Arc<Self>, lease: Arc<Lease>, _counted: Counted) {
        let lasts_until = self.beat_while_used(&lease).await;
        let is_revoked = match lasts_until {
            Some(lasts_until) => self.revoke(&lease, lasts_until).await,
            None => false,
        };
        lease.end();
        self.alive.lock().remove(&lease.scope());
        let events = &self.members.context.events;
        events.ended(lease.scope());
        if !is_revoked {
            // Waiters may have lost their places with it.
            events.missed();
        }
        if lasts_until.is_some() && !is_revoked {
            // The server may keep the lease for longer: it may have received a keep-alive that it
            // could not answer, or a new leader has begun the time of every lease anew. Keys that
            // are attached to it would be in the way of others.
            let longer = lease.ttl + self.members.context.request_timeout;
            let revoked = self.revoke(&lease, self.members.time.after(longer));
            let _ = self.stopping.run_until_cancelled(revoked).await;
        }
    }

    /// Keeps a lease alive until it has to be revoked, and returns by when: nobody uses it, or it
    /// was not confirmed for as long as it lasts. `None`: it has ended at the server.
    async fn beat_while_used(&self, lease: &Lease) -> Option<Deadline> {
        let time = &self.members.time;
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        let mut soon = None;
        loop {
            let confirmed = lease.confirmed()?;
            let lasts_until = Deadline::from(confirmed, lease.ttl);
            let in_time = Deadline::from(confirmed, lease.ttl / BEATS);
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return Some(lasts_until),
                () = lease.gone() => return None,
                () = time.sleep(lasts_until) => return Some(lasts_until),
                () = time.sleep(soon.unwrap_or(in_time)) => {}
                () = lease.demanded() => {}
            }
            if lease.is_unused() {
                return Some(lasts_until);
            }
            let patience = time.after(self.members.patience_within(lease.ttl));
            let beat = Box::pin(self.beat(lease, lasts_until.min(patience)));
            match self.stopping.run_until_cancelled(beat).await {
                None => return Some(lasts_until),
                Some(Ok(())) => {
                    soon = None;
                    backoff.reset();
                }
                Some(Err(ErrorClass::LeaseNotFound)) => return None,
                Some(Err(_)) => soon = Some(time.after(backoff.pause(time).min(lease.ttl / 10))),
            }
        }
    }

    /// Keeps the lease alive once.
    async fn beat(&self, lease: &Lease, limit: Deadline) -> Result<(), ErrorClass> {
        let sent_at = self.members.time.now();
        match self.keep_alive(lease.id, limit).await {
            Ok(()) => {
                lease.confirm(sent_at);
                Ok(())
            }
            Err(failed) => {
                let class = failed.class;
                if class == ErrorClass::Refused {
                    lease.refuse(failed.into());
                }
                Err(class)
            }
        }
    }

    /// Begins the time of a lease anew.
    ///
    /// This goes to the member that other requests go to. A leader that was replaced while it stood
    /// still confirms leases that it does not keep any more (etcd issue 15247), but it cannot
    /// answer those.
    async fn keep_alive(&self, id: i64, limit: Deadline) -> Result<(), Failed> {
        // The call opens a stream, and this is its first message.
        let once = |mut client: Client| async move { client.lease_keep_alive(id).await };
        self.members.ask_one(limit, once).await.map(drop)
    }

    /// Ends a lease and all that is attached to it. Returns whether it has ended, perhaps by
    /// itself.
    async fn revoke(&self, lease: &Lease, deadline: Deadline) -> bool {
        let (id, time) = (lease.id, &self.members.time);
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        loop {
            let revoke = |mut client: Client| async move { client.lease_revoke(id).await };
            match self.members.ask(deadline, revoke).await {
                Ok(_) => return true,
                Err(failed) => match failed.class {
                    ErrorClass::LeaseNotFound => return true,
                    ErrorClass::Refused | ErrorClass::LeaseExists => return false,
                    ErrorClass::AskElsewhere | ErrorClass::AskLater | ErrorClass::LogIn => {}
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

/// The ttl in whole seconds, as etcd counts. It is rounded up, so that no lease ends too early.
pub(super) fn seconds(ttl: Duration) -> i64 {
    let whole = i64::try_from(seconds_up(ttl)).unwrap_or(LONGEST_TTL);
    whole.clamp(1, LONGEST_TTL)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{self, AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::backend::BackendErrorKind;
    use crate::engine::context;
    use crate::store::Cause;
    use crate::stores::etcd::settings::Settings;

    const HANG: Duration = Duration::from_secs(60);

    // Frames of HTTP/2.
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const ACK: u8 = 1;
    const END_OF_STREAM_AND_HEADERS: u8 = 1 | 4;

    async fn send(to: &mut TcpStream, kind: u8, flags: u8, id: [u8; 4], body: &[u8]) {
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        let head = [&length[1..], &[kind, flags], &id].concat();
        // The client may have left.
        let _ = to.write_all(&[&head, body].concat()).await;
    }

    /// Refuses all that is asked over this connection.
    async fn refuse_all(mut client: TcpStream) -> io::Result<()> {
        let mut answer = vec![0x88]; // `:status 200`
        let headers = [
            ("content-type", "application/grpc"),
            ("grpc-status", "7"),
            ("grpc-message", "etcdserver: permission denied"),
        ];
        for (name, value) in headers {
            answer.push(0);
            for text in [name, value] {
                answer.push(u8::try_from(text.len()).expect("short"));
                answer.extend(text.as_bytes());
            }
        }
        client.read_exact(&mut [0; 24]).await?;
        send(&mut client, SETTINGS, 0, [0; 4], &[]).await;
        loop {
            let mut head = [0; 9];
            client.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let (kind, flags, id) = (head[3], head[4], [head[5], head[6], head[7], head[8]]);
            let mut body = vec![0; length as usize];
            client.read_exact(&mut body).await?;
            match kind {
                SETTINGS if flags & ACK == 0 => send(&mut client, SETTINGS, ACK, [0; 4], &[]).await,
                HEADERS => {
                    let flags = END_OF_STREAM_AND_HEADERS;
                    send(&mut client, HEADERS, flags, id, &answer).await;
                }
                _ => {}
            }
        }
    }

    /// From etcd 3.4.42, 3.5.28 and 3.6.9 on, a keep-alive is refused to a user that may not write
    /// all keys of the lease.
    #[tokio::test]
    async fn a_lease_that_may_not_be_kept_alive_says_so_and_lets_nobody_in() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("its address");
        let server = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(refuse_all(client));
            }
        });
        let settings = Settings::from_url(&format!("etcd://{address}"), None).expect("a URL");
        let leases = Leases::new(Arc::new(Members::new(settings, context())));
        let time = leases.members.time.clone();
        let first = Lease::begin(1, 60, HANG, false, time.now(), time.clone());
        let lease = Arc::clone(&first.lease);
        let keeping = Arc::clone(&leases).keep(Arc::clone(&lease), leases.kept.count());
        let keeping = tokio::spawn(keeping);
        time.sleep(time.after(Duration::from_millis(2))).await;
        let oldest = lease.demand(Duration::ZERO, time.now());
        let refused = lease.confirmed_since(oldest, time.after(HANG)).await;
        let Err(Failure {
            cause: Cause::Error(error),
            ..
        }) = refused
        else {
            panic!("no reason is told: {refused:?}");
        };
        assert_eq!(error.kind(), BackendErrorKind::Config, "{error}");
        assert!(lease.enter().is_none(), "others get another lease");
        assert!(!lease.is_gone(), "it lasts for those who have it");
        keeping.abort();
        server.abort();
    }
}
