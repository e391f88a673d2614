//! One connection, and every command that dlock sends over it.
//!
//! memcached does not compare values, only the number that it gives an item at each change (CAS).
//! These numbers count from 1 after each start of the server, so a number that was seen before a
//! restart may belong to another owner's lock after it. A connection leads to a single start of
//! the server as long as it lasts, and knows which one; a number of another start is not used,
//! but read again.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::num::NonZeroU64;

use async_memcached::{Client, Error, ErrorKind, MetaProtocol, MetaValue, Status};

use super::errors::Failed;
use super::examine::Statistics;
use super::names;
use super::settings::Settings;
use super::walk;
use crate::backend::Owner;
use crate::backend::origin::unix_ms;
use crate::deadline::Deadline;
use crate::store::{Freed, Time};
use crate::stores::since::held;

/// The version of an item, as it was last seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    /// The start of the server, by the number in the item `dlock-server`.
    start: Option<u64>,
    cas: NonZeroU64,
    /// Since when its owner has the lock, as the value says.
    since: Option<u64>,
}

/// A connection to one start of the server.
pub(super) struct Connection {
    client: Client,
    server: SocketAddrV4,
    /// `None` if the item of that number has another program's value.
    start: Option<u64>,
}

/// A lock and its owner, as they are stored in the server.
#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub(super) name: Vec<u8>,
    /// What the value begins with; more may follow.
    pub(super) owner: String,
}

/// What is to become of an item.
#[derive(Clone, Copy)]
enum Becomes<'v> {
    Nothing,
    /// The same value, for this many seconds.
    Again(u64),
    /// This value, for this many seconds.
    Value(&'v str, u64),
}

/// An item that belongs to the owner, as it is now.
#[derive(Clone, Copy)]
struct Found {
    cas: NonZeroU64,
    since: Option<u64>,
}

impl Connection {
    /// Connects, and reads which start of the server this is.
    pub(super) async fn open(server: &Settings) -> Result<Self, Failed> {
        let server = server.server().await?;
        let mut connection = Self {
            client: Client::new(format!("tcp://{server}")).await?,
            server,
            start: None,
        };
        connection.start = connection.learn_start().await?;
        Ok(connection)
    }

    /// Whether it can be used for another command.
    pub(super) fn is_open(&self) -> bool {
        !self.client.is_closed()
    }

    async fn learn_start(&mut self) -> Result<Option<u64>, Failed> {
        loop {
            let flags = Some(&["v", "c"][..]);
            if let Some(item) = self
                .client
                .meta_get(names::SERVER, false, None, flags)
                .await?
            {
                cas(&item)?;
                let number = item.data.as_deref().map(std::str::from_utf8);
                let number = number.and_then(Result::ok);
                return Ok(number.and_then(|number| u64::from_str_radix(number, 16).ok()));
            }
            // The number comes from the kernel. A generator of this process would draw the same
            // number in a clone of the process, perhaps for another start of the server.
            let number = Owner::unique().random();
            let value = format!("{number:016x}");
            let stored = self.set(names::SERVER, &value, &["ME", "T0", "c"]).await?;
            if let (Status::Stored, item) = stored {
                cas(&item)?;
                return Ok(Some(number));
            }
            // Another process was first: read its number.
        }
    }

    /// Takes the lock if it is free. `None`: the item exists.
    pub(super) async fn add(
        &mut self,
        lock: Owned,
        seconds: u64,
    ) -> Result<Option<Version>, Failed> {
        let seconds = format!("T{seconds}");
        let flags = ["ME", &*seconds, "c"];
        // If this is granted, the lock is held from here on, and not since it was asked for.
        let since = Some(unix_ms());
        let value = held(&lock.owner, since);
        match self.set(&lock.name, &value, &flags).await? {
            (Status::Stored, item) => Ok(Some(self.version(&item, since)?)),
            (Status::NotStored, _) => Ok(None),
            (other, _) => Err(Failed::unexpected_answer(&other)),
        }
    }

    /// Extends the lease, if the owner has it. `None`: another owner has the lock, or nobody has
    /// it. `known` is the item as it was last seen.
    pub(super) async fn extend(
        &mut self,
        lock: Owned,
        seconds: u64,
        known: Option<Version>,
    ) -> Result<Option<Version>, Failed> {
        let changed = self.change(&lock, known, Becomes::Again(seconds)).await?;
        changed
            .map(|(item, was)| self.version(&item, was.since))
            .transpose()
    }

    /// Gives the lock back, if the owner has it.
    pub(super) async fn delete(
        &mut self,
        lock: Owned,
        known: Option<Version>,
    ) -> Result<Freed, Failed> {
        let deleted = self.change(&lock, known, Becomes::Nothing).await?;
        if deleted.is_some() {
            return Ok(Freed::Released);
        }
        Ok(self.not_held(known))
    }

    /// Replaces the owner's item by a mark that lasts this many seconds.
    pub(super) async fn mark(
        &mut self,
        lock: Owned,
        known: Option<Version>,
        seconds: u64,
    ) -> Result<Freed, Failed> {
        let owner = names::mark(&lock.owner);
        let becomes = Becomes::Value(&owner, seconds);
        let marked = self.change(&lock, known, becomes).await?;
        let Owned { name, .. } = lock;
        // An earlier command may have set the mark.
        let is_there = match marked {
            Some(_) => true,
            None => self.ours(&Owned { name, owner }, None).await?.is_some(),
        };
        Ok(match is_there {
            true => Freed::Released,
            false => self.not_held(known),
        })
    }

    /// Removes a mark. Returns whether there was one.
    pub(super) async fn forget(&mut self, name: Vec<u8>) -> Result<bool, Failed> {
        let items = self.read(vec![name.clone()]).await?;
        let value = items.into_iter().next().and_then(|item| item.data);
        let Some(value) = value.filter(|value| names::done_by(value).is_some()) else {
            return Ok(false);
        };
        let owner = String::from_utf8_lossy(&value).into_owned();
        let mark = Owned { name, owner };
        let deleted = self.change(&mark, None, Becomes::Nothing).await?;
        Ok(deleted.is_some())
    }

    fn not_held(&self, known: Option<Version>) -> Freed {
        // An earlier release may have been run before the server restarted. But just as likely
        // the lock was lost in the restart, so the holder must not be told that all was well.
        let before = known.and_then(|known| known.start);
        let lost = before.is_some() && self.start.is_some() && before != self.start;
        if lost { Freed::Lost } else { Freed::NotHeld }
    }

    /// Replaces or deletes the owner's item, and returns what it was. `None`: there is none.
    async fn change(
        &mut self,
        lock: &Owned,
        known: Option<Version>,
        becomes: Becomes<'_>,
    ) -> Result<Option<(MetaValue, Found)>, Failed> {
        // Use the known number only if this start of the server gave it.
        let known = known.filter(|known| known.start.is_some() && known.start == self.start);
        let mut known = known.map(|Version { cas, since, .. }| Found { cas, since });
        loop {
            let Some(found) = self.ours(lock, known.take()).await? else {
                return Ok(None);
            };
            let compare = format!("C{}", found.cas);
            let again = held(&lock.owner, found.since);
            let new = match becomes {
                Becomes::Nothing => None,
                Becomes::Again(seconds) => Some((&*again, seconds)),
                Becomes::Value(value, seconds) => Some((value, seconds)),
            };
            let answer = if let Some((value, seconds)) = new {
                let seconds = format!("T{seconds}");
                let flags = ["MS", &*compare, &*seconds, "c"];
                self.set(&lock.name, value, &flags).await
            } else {
                let flags = Some(&[&*compare][..]);
                let deleted = self.client.meta_delete(&lock.name, false, None, flags);
                status(deleted.await, Status::Deleted)
            };
            match answer {
                Ok((Status::Stored | Status::Deleted, item)) => return Ok(Some((item, found))),
                Ok((Status::NotFound, _)) => return Ok(None),
                // It has changed: another owner has it, or we extended it and lost the answer.
                // Read it again.
                Ok((Status::Exists, _)) => {}
                Ok((other, _)) => return Err(Failed::unexpected_answer(&other)),
                // A server that is out of memory deletes the item that it should replace, and
                // compares nothing (`process_mset_command`, proto_text.c). Asking again might
                // delete the item of the next owner.
                Err(no_memory @ Failed::Refused(ErrorKind::Server(_))) => {
                    return match self.ours(lock, None).await {
                        Ok(None) => Ok(None),
                        Ok(Some(_)) | Err(_) => Err(no_memory),
                    };
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// The owner's item: `known`, or else the one that is read from the server.
    async fn ours(&mut self, lock: &Owned, known: Option<Found>) -> Result<Option<Found>, Failed> {
        if known.is_some() {
            return Ok(known);
        }
        let flags = Some(&["v", "c"][..]);
        let item = self.client.meta_get(&lock.name, false, None, flags).await?;
        let ours = item.and_then(|item| {
            let since = names::held_by(item.data.as_deref()?, &lock.owner)?;
            Some(cas(&item).map(|cas| Found { cas, since }))
        });
        ours.transpose()
    }

    /// Those of these items that exist, with the seconds that they have left.
    pub(super) async fn read(&mut self, names: Vec<Vec<u8>>) -> Result<Vec<MetaValue>, Failed> {
        let items = self.client.meta_get_multi(&names, Some(&["v", "t"]));
        Ok(items.await?)
    }

    /// The names with this prefix among all items of the server.
    pub(super) async fn names_like(
        &mut self,
        prefix: Vec<u8>,
        by: Deadline,
        time: Time,
    ) -> Result<BTreeSet<Vec<u8>>, Failed> {
        let of_it = self.statistics().await?;
        walk::names_like(self.server, &prefix, by, (&of_it, &time)).await
    }

    /// What the server reports about itself.
    pub(super) async fn statistics(&mut self) -> Result<Statistics, Failed> {
        Ok(Statistics(self.client.stats().await?.into_iter().collect()))
    }

    async fn set(
        &mut self,
        name: impl AsRef<[u8]>,
        value: &str,
        flags: &[&str],
    ) -> Result<(Status, MetaValue), Failed> {
        let set = self.client.meta_set(name, value, false, None, Some(flags));
        status(set.await, Status::Stored)
    }

    fn version(&self, item: &MetaValue, since: Option<u64>) -> Result<Version, Failed> {
        Ok(Version {
            start: self.start,
            cas: cas(item)?,
            since,
        })
    }
}

/// The number of an item. On a server without numbers, any request could take the lock from its
/// holder.
fn cas(item: &MetaValue) -> Result<NonZeroU64, Failed> {
    item.cas.and_then(NonZeroU64::new).ok_or(Failed::NoCas)
}

/// Undoes what the client does: it makes an error of every status except the expected one if no
/// value follows it.
fn status(
    answer: Result<Option<MetaValue>, Error>,
    expected: Status,
) -> Result<(Status, MetaValue), Failed> {
    match answer {
        Ok(item) => {
            let item = item.unwrap_or_default();
            Ok((item.status.clone().unwrap_or(expected), item))
        }
        Err(Error::Protocol(
            status @ (Status::NotStored | Status::Exists | Status::NotFound | Status::Deleted),
        )) => Ok((status, MetaValue::default())),
        Err(error) => Err(error.into()),
    }
}
