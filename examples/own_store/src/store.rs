//! What the engine asks of the directory.
//!
//! Each question is one change of a file, in a thread that may block. When its
//! caller leaves, the thread goes on: it is the engine that waits for it then, and
//! gives back what it has done.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dlock::backend::{
    BackendError, BackendErrorKind, Capabilities, HolderInfo, LockInfo, Mode, Renewed, Request,
    Servers, TokenTier, WaiterInfo,
};
use dlock::store::{
    Abandoned, Applied, Attempt, Attempted, Break, Cause, Context, Deadline, Due, Ending, Failure,
    Followed, Freed, Granted, Late, LeftBehind, Looks, Next, Opening, Store, Take, Time, Waited,
    Want,
};
use tokio::task::{self, JoinHandle};

use crate::clock;
use crate::files;
use crate::lock::{Answer, Lock};

/// How often a lock that is waited for is looked at. To look is to read a small file.
const LOOK: Duration = Duration::from_millis(20);

/// Locks in a directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    time: Time,
}

type Asked = JoinHandle<io::Result<Answer>>;

/// What an acquisition remembers: its question, for as long as it is not answered.
#[derive(Debug, Default)]
pub struct Notes {
    asked: Option<(Asked, Instant)>,
}

impl Store for Directory {
    type Config = PathBuf;
    type Record = ();
    type Notes = Notes;
    type Flight = Asked;
    type Watch = std::convert::Infallible;
    type Seen = ();

    const LOOKS: Looks = Looks::Together;

    fn open(path: PathBuf, context: Context) -> Self {
        Self {
            path,
            time: context.time,
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        let path = self.path.clone();
        self.blocking(deadline, move || files::keys(&path).map(drop))
            .await
    }

    fn capabilities(_: &PathBuf) -> Capabilities {
        let mut capabilities = Capabilities::new("directory");
        capabilities.fair = true;
        capabilities.tokens = TokenTier::Strict;
        capabilities.max_key_bytes = files::MAX_KEY_BYTES;
        capabilities
    }

    fn servers(_: &PathBuf) -> Option<Servers> {
        None
    }

    /// A place costs no more than a question for the lock.
    fn opening(&self, _: &Request) -> Opening {
        Opening::Place
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        let Attempt {
            deadline, notes, ..
        } = attempt;
        if request.mode != Mode::Write {
            return Err(Failure::refused(BackendError::new(
                BackendErrorKind::Unsupported,
                "a directory has no read locks; use mode \"write\"",
            )));
        }
        // Asked before, and not yet answered: that answer will do.
        let (asked, sent_at) = notes.asked.get_or_insert_with(|| {
            let (path, key) = (self.path.clone(), request.key.clone());
            let (owner, ttl) = (request.owner.to_string(), clock::millis(request.ttl));
            // The lease counts from here, so that it ends for its holder first.
            let sent_at = self.time.now();
            let asked = task::spawn_blocking(move || {
                files::change(&path, &key, deadline, |lock, now| {
                    let waits_until = matches!(want, Want::Queue { .. })
                        .then(|| now + clock::millis(Self::DEAD_AFTER));
                    lock.take(&owner, now + ttl, waits_until)
                })
            });
            (asked, sent_at)
        });
        let Ok(answer) = self.time.bound(deadline, asked).await else {
            return Err(Failure::silent(Applied::OnItsWay));
        };
        let sent_at = *sent_at;
        notes.asked = None;
        match answered(answer) {
            Ok(Answer::Granted(token)) => Ok(Take::Granted(Granted::new(token, sent_at, ()))),
            Ok(Answer::Busy) => Ok(Take::Busy),
            Ok(Answer::Queued) => Ok(Take::Queued),
            Err(error) => Err(self.failure(error)),
        }
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        let mut renewed = Vec::with_capacity(due.len());
        for Due { request, .. } in due {
            let (owner, ttl) = (request.owner.to_string(), clock::millis(request.ttl));
            let sent_at = self.time.now();
            let extended = self.change(request, deadline, move |lock, now| {
                lock.extend(&owner, now + ttl)
            });
            renewed.push(extended.await.map(|held| {
                if held {
                    Renewed::extended(sent_at)
                } else {
                    Renewed::Gone
                }
            }));
        }
        renewed
    }

    async fn release(
        &self,
        request: &Request,
        _: Option<&()>,
        _: Ending,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let owner = request.owner.to_string();
        let released = self.change(request, attempt.deadline, move |lock, _| {
            lock.release(&owner)
        });
        Ok(if released.await? {
            Freed::Released
        } else {
            Freed::NotHeld
        })
    }

    /// Whoever holds it: the owner is compared while the file is locked.
    async fn break_off(&self, broken: &Break, attempt: Attempt<'_, Self>) -> Attempted<Freed> {
        let holder = broken.only_holder("directory")?;
        let (path, key, owner) = (self.path.clone(), broken.key.clone(), holder.owner.clone());
        let deadline = attempt.deadline;
        let broken = self.blocking(deadline, move || {
            files::change(&path, &key, deadline, |lock, _| lock.release(&owner))
        });
        Ok(if broken.await? {
            Freed::Released
        } else {
            Freed::NotHeld
        })
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        BackendError::unavailable(format!(
            "the directory {} has not answered for {for_long:?}: the disk is slow, or a process \
             that was stopped is in the middle of a change; look for one with `fuser` on the files \
             that end in `.lock`",
            self.path.display()
        ))
    }

    fn abandon(&self, _: &Request, notes: Notes, _: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(notes.asked.map(|(asked, _)| asked))
    }

    async fn follow(&self, asked: Asked, _: &Request) -> Followed {
        match asked.await {
            Ok(Ok(Answer::Busy)) => Followed::Settled,
            Ok(_) => Followed::Run,
            // Its runtime ended before it began.
            Err(error) if error.is_cancelled() => Followed::Settled,
            Err(_) => Followed::Run,
        }
    }

    /// Every command that is in flight is followed to its end, so none can be late.
    fn late(&self, _: &Request, _: Option<&()>, _: Instant) -> Late {
        Late::Never
    }

    fn pace(&self, (): &mut ()) -> Duration {
        LOOK
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        beat: bool,
        deadline: Deadline,
    ) -> Attempted<()> {
        for lock in waited {
            let (path, key) = (self.path.clone(), lock.key.clone());
            let owners = lock.waiters.iter().map(|waiter| waiter.owner.to_string());
            let owners: Vec<_> = owners.collect();
            let calls = self.blocking(deadline, move || {
                let calls = |lock: &Lock| owners.iter().map(|owner| lock.calls(owner)).collect();
                if beat {
                    return files::change(&path, &key, deadline, |lock, now| {
                        for owner in &owners {
                            lock.keep_place(owner, now + clock::millis(Self::DEAD_AFTER));
                        }
                        calls(lock)
                    });
                }
                files::look(&path, &key).map(|(lock, _)| calls(&lock))
            });
            let calls: Vec<bool> = calls.await?;
            for (waiter, calls) in lock.waiters.iter_mut().zip(calls) {
                waiter.wake |= calls;
            }
        }
        Ok(())
    }

    async fn inspect(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<Option<LockInfo>> {
        let (path, key) = (self.path.clone(), key.to_owned());
        self.blocking(attempt.deadline, move || info(&path, key))
            .await
    }

    async fn list(
        &self,
        prefix: &str,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Option<Vec<LockInfo>>> {
        let (path, prefix) = (self.path.clone(), prefix.to_owned());
        let listed = self.blocking(attempt.deadline, move || {
            let keys = files::keys(&path)?.into_iter();
            let keys = keys.filter(|key| key.starts_with(&prefix));
            keys.filter_map(|key| info(&path, key).transpose())
                .collect()
        });
        listed.await.map(Some)
    }
}

impl Directory {
    /// Makes a change that may be made twice. So it does no harm if nobody waits for its answer any
    /// more.
    async fn change<T: Send + 'static>(
        &self,
        request: &Request,
        deadline: Deadline,
        with: impl FnOnce(&mut Lock, u64) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let (path, key) = (self.path.clone(), request.key.clone());
        self.blocking(deadline, move || files::change(&path, &key, deadline, with))
            .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        deadline: Deadline,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        match self.time.bound(deadline, task::spawn_blocking(work)).await {
            Ok(answer) => answered(answer).map_err(|error| self.failure(error)),
            Err(_) => Err(Failure::silent(Applied::No)),
        }
    }

    fn failure(&self, error: io::Error) -> Failure {
        let path = self.path.display();
        match error.kind() {
            ErrorKind::TimedOut => Failure::silent(Applied::No),
            ErrorKind::InvalidData => Failure::refused(BackendError::new(
                BackendErrorKind::Config,
                format!(
                    "a file in {path} holds something that is no lock; give locks a directory of their own"
                ),
            )),
            _ => {
                let message = format!(
                    "the directory {path}: {error}; check that it is there and can be written"
                );
                let cause = BackendError::unavailable(message).with_cause(error);
                // It may have failed after the new state was in its place.
                Failure::new(Cause::Error(cause), Next::Pause, Applied::Answered)
            }
        }
    }
}

fn answered<T>(answer: Result<io::Result<T>, task::JoinError>) -> io::Result<T> {
    answer.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn info(path: &std::path::Path, key: String) -> io::Result<Option<LockInfo>> {
    let (lock, now) = files::look(path, &key)?;
    let waiters = lock.queue.iter();
    let waiters = waiters.map(|place| WaiterInfo::new(place.owner.clone(), Mode::Write));
    let waiters: Vec<_> = waiters.collect();
    Ok(lock.holder.map(|holder| {
        let expires_in = Duration::from_millis(holder.until - now);
        let holder = HolderInfo::new(holder.owner, Some(expires_in));
        LockInfo::new(key, Mode::Write, vec![holder], waiters.len()).with_queue(waiters)
    }))
}
