//! `recipe=lock-service`: the server's own Lock call does the waiting.
//!
//! Each attempt has a lease of its own, which is kept alive while the call waits
//! (the call does not do that) and is revoked when the attempt is given up: the
//! server deletes the key of a call that was cut off by its name alone (etcd issue
//! 22082), and an attempt after it must not have the same.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions, LockOptions, SortOrder, SortTarget};
use tokio::time::{Instant, sleep, timeout};

use super::core::{Caller, Core, Granted};
use super::errors::{self, Verdict, verdict};
use super::names::LockName;
use super::patience::Patience;
use super::places::Name;
use super::standing::Standing;
use crate::backend::{BackendError, Request};

/// When it is first looked whether somebody else has the lock, for a caller who
/// gives up soon.
const FIRST_LOOK: Duration = Duration::from_millis(10);

/// How often it is looked at after that: a call that the server has forgotten
/// costs this.
const PERIOD: Duration = Duration::from_secs(10);

/// Between calls that fail.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

pub(super) async fn acquire(
    core: Arc<Core>,
    request: Request,
    mut caller: Caller,
) -> Result<Option<Granted>, BackendError> {
    let lock = core.members.settings.names.lock(&request.key);
    let mut patience = Patience::new(&core);
    let mut failing = Failing::default();
    loop {
        if caller.has_left() {
            return Ok(None);
        }
        let (since, deadline) = (patience.since(), patience.deadline());
        let tenancy = core.leases.private(request.ttl, since, deadline).await?;
        let lease = Arc::clone(tenancy.lease());
        // The call writes nothing into it.
        let name = Name::given(lock.of_lock_service(lease.id()), String::new());
        let mut standing = Standing::new(&core, tenancy, name);
        standing.may_be_there();
        let called_at = Instant::now();
        let called = tokio::select! {
            biased;
            () = caller.left() => return Ok(None),
            () = lease.gone() => Ok(()),
            called = call(&core, &lock, lease.id()) => called,
            error = look(&core, &lock, &request, &mut patience) => return Err(error),
        };
        patience.renew();
        if let Err((error, verdict)) = called {
            let pause = failing.again(called_at);
            if verdict == Verdict::Refused || failing.for_long(&core) {
                return Err(error);
            }
            // The lease ends with the attempt, whatever became of the call.
            drop(standing);
            sleep(pause).await;
            continue;
        }
        // The call may be answered although its key has ended (etcd issue 9921).
        if standing.find(&patience).await?
            && let Some(granted) = standing.granted(&request, &patience).await?
        {
            return Ok(Some(granted));
        }
        patience.next_round();
    }
}

/// Calls that failed one after the other.
#[derive(Default)]
struct Failing {
    since: Option<Instant>,
    pause: Duration,
}

impl Failing {
    /// One that was made then has failed: how long to pause. A call that has
    /// waited for a while, and then failed, is the first one.
    fn again(&mut self, called_at: Instant) -> Duration {
        if called_at.elapsed() > LONGEST_PAUSE || self.since.is_none() {
            self.since = Some(Instant::now());
            self.pause = FIRST_LOOK;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }

    fn for_long(&self, core: &Core) -> bool {
        let timeout = core.members.settings.request_timeout;
        self.since.is_some_and(|since| since.elapsed() >= timeout)
    }
}

/// The call itself. Once it is sent, it has no limit but its lease, as it waits.
async fn call(core: &Core, lock: &LockName, lease: i64) -> Result<(), (BackendError, Verdict)> {
    let described = |error| {
        let verdict = verdict(&error);
        (errors::described(core.members.place(), &error), verdict)
    };
    let patience = core.members.settings.patience();
    let silent = |_| {
        let error = errors::silent(core.members.place(), patience);
        (error, Verdict::AskElsewhere)
    };
    let mut asked = timeout(patience, core.members.client())
        .await
        .map_err(silent)?
        .map_err(described)?;
    let options = LockOptions::new().with_lease(lease);
    let answer = asked
        .client
        .lock(lock.for_lock_service(), Some(options))
        .await;
    match answer {
        Ok(_) => Ok(()),
        Err(error) => {
            match verdict(&error) {
                Verdict::LogIn => drop(timeout(patience, asked.client.refresh_token()).await),
                Verdict::AskElsewhere => core.members.avoid(&asked),
                Verdict::LeaseNotFound | Verdict::Refused => {}
            }
            Err(described(error))
        }
    }
}

/// Looks whether the lock is somebody's, and that the members answer. Ends when
/// they do not.
async fn look(
    core: &Core,
    lock: &LockName,
    request: &Request,
    patience: &mut Patience,
) -> BackendError {
    let mut period = FIRST_LOOK;
    loop {
        sleep(period).await;
        period = PERIOD;
        patience.renew();
        let options = GetOptions::new()
            .with_prefix()
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(1)
            .with_keys_only();
        let read = |mut client: Client| {
            let (queue, options) = (lock.queue().to_owned(), options.clone());
            async move { client.get(queue, Some(options)).await }
        };
        let (since, deadline) = (patience.since(), patience.deadline());
        match core.members.call_until(since, deadline, read).await {
            Ok(answer) if answer.value.kvs().is_empty() => {}
            Ok(_) => request.is_held_by_somebody(),
            Err(failure) => return failure.error,
        }
    }
}
