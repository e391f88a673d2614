//! What is known of a lock, and what may be done with it.

use std::fmt;
use std::str::FromStr;

use dlock::TOKENS_PER_GRANT;

/// A lock as its file has it. Times are of the machine's clock, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// That of the last grant: it only rises.
    pub token: u64,
    /// Who holds it, and until when.
    pub holder: Option<Entry>,
    /// Who waits for it, and until when its process is taken to be alive.
    pub queue: Vec<Entry>,
}

/// An owner, for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As it is displayed.
    pub owner: String,
    /// It is there before this time.
    pub until: u64,
}

/// The answer to a question for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has it, with this token.
    Granted(u64),
    /// Somebody else has it, or was there before.
    Busy,
    /// It has a place in the queue.
    Queued,
}

impl Lock {
    /// Takes out whose time has passed.
    pub(crate) fn forget_the_past(&mut self, now: u64) {
        self.holder.take_if(|holder| holder.until <= now);
        self.queue.retain(|place| place.until > now);
    }

    /// Gives the lock to `owner`, if it is free and nobody was there before; else a
    /// place in the queue until `waits_until`, if it waits.
    pub(crate) fn take(&mut self, owner: &str, until: u64, waits_until: Option<u64>) -> Answer {
        if let Some(holder) = self.holder.as_mut().filter(|holder| holder.owner == owner) {
            // It was asked before, and nobody knows of the answer.
            holder.until = until;
            return Answer::Granted(self.token);
        }
        if self.next().is_none_or(|next| next == owner) && self.holder.is_none() {
            self.queue.retain(|place| place.owner != owner);
            self.token += TOKENS_PER_GRANT;
            self.holder = Some(Entry {
                owner: owner.to_owned(),
                until,
            });
            return Answer::Granted(self.token);
        }
        match waits_until {
            None => Answer::Busy,
            Some(until) => {
                if !self.keep_place(owner, until) {
                    self.queue.push(Entry {
                        owner: owner.to_owned(),
                        until,
                    });
                }
                Answer::Queued
            }
        }
    }

    /// The process of this owner was alive just now. Whether it has a place.
    pub(crate) fn keep_place(&mut self, owner: &str, until: u64) -> bool {
        let place = self.queue.iter_mut().find(|place| place.owner == owner);
        place.map(|place| place.until = until).is_some()
    }

    /// Whether it held it.
    pub(crate) fn extend(&mut self, owner: &str, until: u64) -> bool {
        let holder = self.holder.as_mut().filter(|holder| holder.owner == owner);
        holder.map(|holder| holder.until = until).is_some()
    }

    /// Takes the lock and the place of an owner. Whether it held it.
    pub(crate) fn release(&mut self, owner: &str) -> bool {
        self.queue.retain(|place| place.owner != owner);
        self.holder
            .take_if(|holder| holder.owner == owner)
            .is_some()
    }

    /// Whether this waiter has cause to ask: it is its turn, or it was taken for dead
    /// and has no place any more.
    pub(crate) fn calls(&self, owner: &str) -> bool {
        let is_first = self.next().is_some_and(|next| next == owner);
        let has_place = self.queue.iter().any(|place| place.owner == owner);
        !has_place || (is_first && self.holder.is_none())
    }

    fn next(&self) -> Option<&str> {
        self.queue.first().map(|place| place.owner.as_str())
    }
}

/// A line for each thing that is known.
impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "token {}", self.token)?;
        if let Some(Entry { owner, until }) = &self.holder {
            writeln!(f, "held {until} {owner}")?;
        }
        for Entry { owner, until } in &self.queue {
            writeln!(f, "waits {until} {owner}")?;
        }
        Ok(())
    }
}

impl FromStr for Lock {
    type Err = NotALock;

    fn from_str(text: &str) -> Result<Self, NotALock> {
        let mut lines = text.lines();
        let token = lines.next().and_then(|line| line.strip_prefix("token "));
        let mut lock = Self {
            token: token.and_then(|token| token.parse().ok()).ok_or(NotALock)?,
            ..Self::default()
        };
        for line in lines {
            let (what, entry) = line.split_once(' ').ok_or(NotALock)?;
            let (until, owner) = entry.split_once(' ').ok_or(NotALock)?;
            let entry = Entry {
                owner: owner.to_owned(),
                until: until.parse().map_err(|_| NotALock)?,
            };
            match what {
                "held" => lock.holder = Some(entry),
                "waits" => lock.queue.push(entry),
                _ => return Err(NotALock),
            }
        }
        Ok(lock)
    }
}

/// A file holds something else.
#[derive(Clone, Copy, Debug)]
pub struct NotALock;
