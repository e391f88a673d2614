//! What the engine asks of the directory.
//!
//! Each question is one change of a file, in a thread that may block. When its
//! caller leaves, the thread goes on: it is the engine that waits for it then, and
//! gives back what it has done.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::backend::{
    BackendError, BackendErrorKind, Capabilities, HolderInfo, LockInfo, Mode, Renewed, Request,
    Servers, TokenTier, WaiterInfo,
};
use dlock::store::{
    Abandoned, Applied, Attempt, Attempted, Break, Context, Deadline, Due, Ending, Failure,
    Followed, Freed, Granted, Late, LeftBehind, Looks, Opening, Store, Take, Time, Waited, Want,
};
use tokio::task::{self, JoinHandle};

use crate::clock;
use crate::files;
use crate::lock::{Answer, Lock};

/// How often a lock that is waited for is looked at. To look is to read a small file.
const LOOK: Duration = Duration::from_millis(20);

/// How long a look may take, so that one lock that is stuck does not keep the others waiting.
const LOOK_LIMIT: Duration = Duration::from_millis(500);

/// How many files are read in one part of a list.
const LISTED_AT_ONCE: usize = 1000;

/// Locks in a directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    time: Time,
}

/// What is asked of the files, in a thread that may block. The thread goes on if nobody waits for
/// it any more.
#[derive(Debug)]
pub struct Question<T> {
    sent_at: Instant,
    thread: JoinHandle<Result<T, files::Error>>,
}

/// What an operation remembers from attempt to attempt.
#[derive(Debug, Default)]
pub struct Notes {
    /// The question of an acquisition, for as long as it is not answered.
    asked: Option<Question<Answer>>,
    /// The part of a list that is done.
    listing: Option<Listing>,
}

/// A list, which is made in parts.
#[derive(Debug)]
struct Listing {
    left: Vec<String>,
    locks: Vec<LockInfo>,
}

impl Store for Directory {
    type Config = PathBuf;
    type Record = ();
    type Notes = Notes;
    type Flight = Question<Answer>;
    type Watch = std::convert::Infallible;
    type Seen = ();

    const LOOKS: Looks = Looks::Together;

    /// Each thread comes to its end, so a cleanup waits for it, and a shutdown for the cleanup: a
    /// release beside a question that has no thread yet would come before it.
    const FLIGHT_LIMIT: Duration = Duration::from_secs(3600);

    fn open(path: PathBuf, context: Context) -> Self {
        Self {
            path,
            time: context.time,
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        let path = self.path.clone();
        let asked = self.ask(move || files::check(&path));
        self.answer(asked, deadline).await
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
        let question = notes.asked.get_or_insert_with(|| {
            let owner = request.owner.to_string();
            let ttl = request.ttl;
            self.ask_to_change(&request.key, deadline, move |lock, now| {
                let waits_until =
                    matches!(want, Want::Queue { .. }).then(|| clock::end(now, Self::DEAD_AFTER));
                lock.take(&owner, clock::end(now, ttl), waits_until)
            })
        });
        let sent_at = question.sent_at;
        let Ok(answer) = self.time.bound(deadline, &mut question.thread).await else {
            return Err(Failure::silent(Applied::OnItsWay));
        };
        notes.asked = None;
        Ok(match answered(answer, sent_at)? {
            Answer::Granted(token) => Take::Granted(Granted::new(token, sent_at, ())),
            Answer::Busy => Take::Busy,
            Answer::Queued => Take::Queued,
        })
    }

    /// The others of a batch wait as long for one that is stuck.
    fn renews_within(&self, request_timeout: Duration, shortest: Duration) -> Duration {
        request_timeout.min(shortest / 4)
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        // All are asked at once, so that a file that is stuck takes no time from the others.
        let asked = due.iter().map(|Due { request, .. }| {
            let (owner, ttl) = (request.owner.to_string(), request.ttl);
            self.ask_to_change(&request.key, deadline, move |lock, now| {
                lock.extend(&owner, clock::end(now, ttl))
            })
        });
        let asked: Vec<_> = asked.collect();
        let mut renewed = Vec::with_capacity(asked.len());
        for question in asked {
            let sent_at = question.sent_at;
            renewed.push(self.answer(question, deadline).await.map(|held| {
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
        self.release_of(request.owner.to_string(), &request.key, attempt.deadline)
            .await
    }

    /// Whoever holds it: the owner is compared while the file is locked.
    async fn break_off(&self, broken: &Break, attempt: Attempt<'_, Self>) -> Attempted<Freed> {
        let holder = broken.only_holder("directory")?;
        self.release_of(holder.owner.clone(), &broken.key, attempt.deadline)
            .await
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
        Abandoned::in_flight(notes.asked)
    }

    async fn follow(&self, asked: Question<Answer>, _: &Request) -> Followed {
        match asked.thread.await {
            Ok(Ok(Answer::Busy)) => Followed::Settled,
            Ok(Err(error)) if !error.was_made => Followed::Settled,
            // Its runtime ended before it began.
            Err(error) if error.is_cancelled() => Followed::Settled,
            _ => Followed::Run,
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
        // A file that is stuck for longer is left to those who wait for it.
        let deadline = deadline.min(self.time.after(LOOK_LIMIT));
        let asked = waited.iter().map(|lock| {
            let (path, key) = (self.path.clone(), lock.key.clone());
            let owners = lock.waiters.iter().map(|waiter| waiter.owner.to_string());
            let owners: Vec<_> = owners.collect();
            self.ask(move || {
                let calls = |lock: &Lock| owners.iter().map(|owner| lock.calls(owner)).collect();
                if beat {
                    return files::change(&path, &key, deadline, |lock, now| {
                        for owner in &owners {
                            lock.keep_place(owner, clock::end(now, Self::DEAD_AFTER));
                        }
                        calls(lock)
                    });
                }
                files::look(&path, &key).map(|(lock, _)| calls(&lock))
            })
        });
        let asked: Vec<Question<Vec<bool>>> = asked.collect();
        let (mut answers, mut failed) = (0, None);
        for (lock, question) in waited.iter_mut().zip(asked) {
            match self.answer(question, deadline).await {
                Ok(calls) => {
                    answers += 1;
                    for (waiter, calls) in lock.waiters.iter_mut().zip(calls) {
                        waiter.wake |= calls;
                    }
                }
                Err(failure) => {
                    // They ask, and are told what is wrong with this lock.
                    lock.wake_all();
                    failed = Some(failure);
                }
            }
        }
        match failed {
            Some(failure) if answers == 0 => Err(failure),
            _ => Ok(()),
        }
    }

    async fn inspect(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<Option<LockInfo>> {
        let (path, key) = (self.path.clone(), key.to_owned());
        let asked = self.ask(move || info(&path, key));
        self.answer(asked, attempt.deadline).await
    }

    async fn list(
        &self,
        prefix: &str,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Option<Vec<LockInfo>>> {
        let (path, prefix) = (self.path.clone(), prefix.to_owned());
        let listing = attempt.notes.listing.take();
        let asked = self.ask(move || {
            let mut listing = match listing {
                Some(listing) => listing,
                None => Listing::of(files::keys(&path)?, &prefix),
            };
            listing.look_at_some(&path)?;
            Ok(listing)
        });
        let listing = self.answer(asked, attempt.deadline).await?;
        if listing.left.is_empty() {
            return Ok(Some(listing.locks));
        }
        attempt.notes.listing = Some(listing);
        Ok(None)
    }
}

impl Directory {
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, files::Error> + Send + 'static,
    ) -> Question<T> {
        // A lease counts from here, so that it ends for its holder first.
        let sent_at = self.time.now();
        let thread = task::spawn_blocking(work);
        Question { sent_at, thread }
    }

    fn ask_to_change<T: Send + 'static>(
        &self,
        key: &Arc<str>,
        deadline: Deadline,
        with: impl FnOnce(&mut Lock, u64) -> T + Send + 'static,
    ) -> Question<T> {
        let (path, key) = (self.path.clone(), Arc::clone(key));
        self.ask(move || files::change(&path, &key, deadline, with))
    }

    /// For a question that may be asked twice, so that it does no harm if it is answered late.
    async fn answer<T>(&self, question: Question<T>, deadline: Deadline) -> Attempted<T> {
        let sent_at = question.sent_at;
        match self.time.bound(deadline, question.thread).await {
            Ok(answer) => answered(answer, sent_at),
            Err(_) => Err(Failure::silent(Applied::Unknown { sent_at })),
        }
    }

    async fn release_of(
        &self,
        owner: String,
        key: &Arc<str>,
        deadline: Deadline,
    ) -> Attempted<Freed> {
        let asked = self.ask_to_change(key, deadline, move |lock, _| lock.release(&owner));
        self.answer(asked, deadline).await.map(Freed::of)
    }
}

/// The answer to a question of this time, or what its error means.
fn answered<T>(
    answer: Result<Result<T, files::Error>, task::JoinError>,
    sent_at: Instant,
) -> Attempted<T> {
    let unknown = Applied::Unknown { sent_at };
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => {
            let applied = if error.was_made { unknown } else { Applied::No };
            Err(failure(error).with(applied))
        }
        Err(error) => {
            let error = BackendError::unavailable("a thread ended early").with_cause(error);
            Err(Failure::refused(error).with(unknown))
        }
    }
}

fn failure(error: files::Error) -> Failure {
    match error.cause.kind() {
        ErrorKind::TimedOut => Failure::silent(Applied::No),
        // These would be refused again.
        ErrorKind::InvalidData => Failure::refused(BackendError::new(
            BackendErrorKind::Config,
            error.to_string(),
        )),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            let message = format!("{error}; let the user of this process write to the directory");
            Failure::refused(BackendError::new(BackendErrorKind::Config, message))
        }
        _ => {
            let message = format!("{error}; check that it is there and can be written");
            Failure::refused(BackendError::unavailable(message).with_cause(error.cause))
        }
    }
}

impl Listing {
    fn of(mut keys: Vec<String>, prefix: &str) -> Self {
        keys.retain(|key| key.starts_with(prefix));
        Self {
            left: keys,
            locks: Vec::new(),
        }
    }

    fn look_at_some(&mut self, path: &Path) -> Result<(), files::Error> {
        let rest = self.left.len().saturating_sub(LISTED_AT_ONCE);
        for key in self.left.drain(rest..) {
            match info(path, key) {
                Ok(lock) => self.locks.extend(lock),
                // It is no lock, or none of this machine.
                Err(error) if error.cause.kind() == ErrorKind::InvalidData => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn info(path: &Path, key: String) -> Result<Option<LockInfo>, files::Error> {
    let (lock, now) = files::look(path, &key)?;
    let waiters = lock.queue.iter();
    let waiters = waiters.map(|place| WaiterInfo::new(place.owner.clone(), Mode::Write));
    let waiters: Vec<_> = waiters.collect();
    Ok(lock.holder.map(|holder| {
        // Without what was rounded up.
        let expires_in = Duration::from_millis((holder.until - now).saturating_sub(1));
        let holder = HolderInfo::new(holder.owner, Some(expires_in));
        LockInfo::new(key, Mode::Write, vec![holder], waiters.len()).with_queue(waiters)
    }))
}
