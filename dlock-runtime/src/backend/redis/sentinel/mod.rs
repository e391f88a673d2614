//! `redis+sentinel://`: a master that is known by its name, and sentinels that
//! say where it is.
//!
//! No single sentinel is believed: a server counts as the master if more than
//! half of the sentinels in the URL name it, whether they answer or not, and if
//! it says so itself. This is asked anew for each connection ([`Sentinels::locate`]),
//! and in the background, as a master that was replaced need not know
//! ([`follow`]).

mod ask;
mod follow;
mod votes;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Value;
use tokio::task::JoinSet;

pub(super) use self::follow::follow;
use self::votes::Votes;
use super::clock::{Clock, Deadline};
use super::errors::{Place, Server as Named};
use super::hosts::{Hosts, decoded};
use super::names::Keyspace;
use super::settings::{Server, Settings, invalid};
use super::socket::Address;
use crate::backend::BackendError;
use crate::limits;

const DEFAULT_PORT: u16 = 26379;

const EXAMPLE: &str = "redis+sentinel://host1,host2,host3/mymaster";

/// Who says which server is the master.
pub(super) struct Sentinels {
    master: String,
    nodes: Vec<Sentinel>,
    /// Where the master was when they were last asked, if they agreed.
    located: Mutex<Option<Address>>,
}

struct Sentinel {
    address: Address,
    /// How to connect and log in.
    settings: Settings,
}

/// Reads `redis+sentinel://[user:password@]s1[:port],s2,…/master[/db][?…]`. The
/// user and password are those of the master.
pub(super) fn read(url: &str) -> Result<Settings, BackendError> {
    let hosts = Hosts::parse(url, EXAMPLE)?;
    let (master, database) = hosts.path().split_once('/').unwrap_or((hosts.path(), ""));
    let master = decoded(master)?;
    if master.is_empty() {
        return Err(invalid(format!(
            "behind the sentinels comes the name of the master, as in {EXAMPLE}"
        )));
    }
    let (mut database, mut user, mut password) = (database.to_owned(), None, None);
    let mut replicas = 0;
    for (option, value) in hosts.options() {
        let value = decoded(value)?;
        match *option {
            "db" if database.is_empty() || database == value => database = value,
            "db" => return Err(invalid("it names two databases, in its path and by `db`")),
            "replicas" => {
                replicas = value
                    .parse()
                    .map_err(|_| invalid("`replicas` is a number, such as 1"))?;
                limits::REPLICAS
                    .within(replicas)
                    .map_err(|reason| invalid(format!("`replicas`: {reason}")))?;
            }
            "sentinel_username" => user = Some(value),
            "sentinel_password" => password = Some(value),
            // Its name may be a password that was not encoded.
            _ => {
                return Err(invalid(
                    "it has an unknown parameter; there are `db`, `replicas`, `sentinel_username`, \
                     `sentinel_password` and `ca`",
                ));
            }
        }
    }
    if user.is_some() && password.is_none() {
        return Err(invalid("`sentinel_username` needs a `sentinel_password`"));
    }
    let mut nodes = Vec::new();
    for mut settings in hosts.nodes(DEFAULT_PORT, false, "")? {
        if let Some(user) = &user {
            settings.login = settings.login.set_username(user);
        }
        if let Some(password) = &password {
            settings.login = settings.login.set_password(password);
        }
        if let Server::At(address) = settings.server.clone() {
            nodes.push(Sentinel { address, settings });
        }
    }
    let sentinels = Sentinels {
        master,
        nodes,
        located: Mutex::default(),
    };
    Settings::of_master(&hosts, &database, sentinels, replicas)
}

impl Sentinels {
    /// The name of the master.
    pub(super) fn master(&self) -> &str {
        &self.master
    }

    /// Where the master is if that is known, or else the sentinels.
    pub(super) fn addresses(&self) -> Vec<String> {
        match &*self.located() {
            Some(address) => vec![address.to_string()],
            None => {
                let addresses = self.nodes.iter().map(|node| node.address.to_string());
                addresses.collect()
            }
        }
    }

    fn located(&self) -> MutexGuard<'_, Option<Address>> {
        self.located.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks all sentinels where the master is, and is done as soon as enough of
    /// them agree.
    pub(super) async fn locate(
        self: &Arc<Self>,
        place: &Place,
        clock: &Clock,
        deadline: Deadline,
    ) -> Result<Address, BackendError> {
        let located = self.elect(place, clock, deadline).await;
        *self.located() = located.as_ref().ok().cloned();
        located
    }

    async fn elect(
        self: &Arc<Self>,
        place: &Place,
        clock: &Clock,
        deadline: Deadline,
    ) -> Result<Address, BackendError> {
        let mut asking = JoinSet::new();
        for index in 0..self.nodes.len() {
            let (sentinels, clock) = (Arc::clone(self), clock.clone());
            asking.spawn(async move { (index, sentinels.ask(index, &clock, deadline).await) });
        }
        let mut votes = Votes::new(self.nodes.len());
        while let Some(heard) = asking.join_next().await {
            // An error means that this runtime is shutting down.
            if let Ok((index, vote)) = heard {
                votes.set(index, vote);
                if let Some(address) = votes.winner() {
                    return Ok(address.clone());
                }
            }
        }
        Err(votes.no_winner(place, &self.nodes))
    }

    /// Says so if the master has fewer replicas than a lock needs. `role` is
    /// its answer to `ROLE`.
    pub(super) fn warn_of_replicas(&self, role: &Value, needed: usize) {
        if let Value::Array(role) = role
            && let Some(Value::Array(replicas)) = role.get(2)
            && replicas.len() < needed
        {
            tracing::warn!(
                "redis master `{}` has {} replicas now, and no lock can be had without the \
                 {needed} that `replicas={needed}` asks for",
                self.master,
                replicas.len()
            );
        }
    }

    /// Says what is not as it should be with the number of sentinels.
    pub(super) fn warn_of_their_number(&self) {
        let (master, count) = (&self.master, self.nodes.len());
        if count < 3 {
            tracing::warn!(
                target: "dlock::store",
                "redis master `{master}`: only {count} of its sentinels in the URL; name all of \
                 them, three at least, so that one can be down or wrong"
            );
        } else if count.is_multiple_of(2) {
            tracing::warn!(
                target: "dlock::store",
                "redis master `{master}`: {count} sentinels bear no more failures than {}; name \
                 an odd number",
                count - 1
            );
        }
    }
}

impl Sentinel {
    fn place(&self) -> Place {
        let name = Named::Sentinel(self.address.clone());
        Place::new(name, Keyspace::Server, self.settings.login.password())
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.nodes.iter().map(|node| node.address.to_string());
        f.debug_struct("Sentinels")
            .field("master", &self.master)
            .field("addresses", &addresses.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
