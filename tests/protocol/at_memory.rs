//! `memory:` itself, on paused time.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use dlock::backend::memory::Memory;
use dlock::backend::{
    Backend, BackendError, BackendErrorKind, Grant, HolderInfo, LockInfo, Owner, Released, Renewed,
    Request,
};
use dlock::bare::{self, Said};
use dlock::store::{Ending, Want};

use crate::reference::Answer;
use crate::rules::{MEMORY, Rules};
use crate::run::{Kept, KeptHolder, KeptLock, Process, Scene};
use crate::sequence::KEYS;

#[derive(Default)]
pub(crate) struct AtMemory(Memory);

pub(crate) fn scene() -> AtMemory {
    AtMemory::default()
}

type Waiting = Pin<Box<dyn Future<Output = Result<Grant, BackendError>>>>;

/// One manager of those that share it.
pub(crate) struct Clone {
    memory: Memory,
    waiting: HashMap<Owner, Waiting>,
}

fn failed(error: BackendError) -> String {
    error.to_string()
}

/// What has been done is told as an error.
fn told(error: BackendError) -> Result<(Answer, u64), String> {
    match error.kind() {
        BackendErrorKind::Done => Ok((Answer::Done, 0)),
        _ => Err(failed(error)),
    }
}

impl Process for Clone {
    async fn take(&mut self, request: &Request, want: Want) -> Result<(Answer, u64), String> {
        let granted = |grant: Grant| (Answer::Granted, u64::from(grant.token));
        if !matches!(want, Want::Queue { .. }) {
            return match self.memory.try_acquire(request).await {
                Ok(tried) => Ok(tried.map_or((Answer::Busy, 0), granted)),
                Err(error) => told(error),
            };
        }
        let (memory, asked) = (self.memory.clone(), request.clone());
        let waiting = self
            .waiting
            .entry(request.owner)
            .or_insert_with(|| Box::pin(async move { memory.acquire(&asked).await }));
        // As its task would do when it is woken.
        let polled = std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context)));
        match polled.await {
            Poll::Pending => Ok((Answer::Queued, 0)),
            Poll::Ready(grant) => {
                self.waiting.remove(&request.owner);
                grant.map_or_else(told, |grant| Ok(granted(grant)))
            }
        }
    }

    async fn renew(&mut self, requests: &[Request]) -> Result<Vec<bool>, String> {
        let is_extended = |renewed| matches!(renewed, Renewed::Extended { .. });
        let renewed = self.memory.renew(requests).await.into_iter();
        renewed
            .map(|renewed| renewed.map(is_extended).map_err(failed))
            .collect()
    }

    async fn release(&mut self, request: &Request, ending: Ending) -> Result<bool, String> {
        let released = match ending {
            Ending::Done(time) => self.memory.release(&bare::done(request, time)).await,
            _ => self.memory.release(request).await,
        };
        let released = released.map_err(failed)?;
        self.waiting.remove(&request.owner);
        Ok(released == Released::Released)
    }

    async fn forget(&mut self, key: &str) -> Result<bool, String> {
        self.memory.forget(key).await.map_err(failed)
    }

    async fn look(&mut self, _: &str, _: &[Request], _: bool) -> Result<Vec<bool>, String> {
        Err("nobody looks".into())
    }

    async fn farewell(&mut self) {}

    async fn disown(&mut self, _: &str, _: &str, _: &HashSet<Owner>) -> Result<(), String> {
        Err("it has no places of others".into())
    }

    async fn inspect(&mut self, key: &str) -> Result<Option<LockInfo>, String> {
        self.memory.inspect(key).await.map_err(failed)
    }

    async fn list(&mut self, prefix: &str) -> Result<Vec<LockInfo>, String> {
        self.memory.list(prefix).await.map_err(failed)
    }

    fn knows(&mut self, _: &Request) {}

    async fn says(&mut self, _: Duration) -> Option<Said> {
        None
    }
}

impl Scene for AtMemory {
    type Process = Clone;

    fn rules(&self) -> Rules {
        MEMORY
    }

    async fn open(&mut self) -> Clone {
        Clone {
            memory: self.0.clone(),
            waiting: HashMap::new(),
        }
    }

    async fn notices(&mut self, _: usize) {}

    async fn look(&mut self, pass: u64) -> Kept {
        tokio::time::advance(Duration::from_millis(pass)).await;
        let mut kept = Kept::default();
        for key in KEYS {
            let Some(lock) = self.0.inspect(key).await.expect("it answers") else {
                continue;
            };
            let holder = |holder: &HolderInfo| KeptHolder {
                owner: holder.owner.clone(),
                left: i64::try_from(holder.expires_in.unwrap_or_default().as_millis())
                    .expect("a ttl"),
                unclaimed: false,
            };
            let lock = KeptLock {
                read: lock.mode.is_shared(),
                holders: lock.holders.iter().map(holder).collect(),
                done: lock.done.as_ref().map(holder),
                ..KeptLock::default()
            };
            kept.locks.insert(key.to_owned(), lock);
        }
        kept
    }

    async fn left(&mut self) -> Vec<String> {
        let locks = self.0.list("").await.expect("it answers");
        locks.into_iter().map(|lock| lock.key).collect()
    }

    /// It counts its tokens from the start.
    async fn wipe(&mut self) -> bool {
        self.0 = Memory::new();
        false
    }
}
