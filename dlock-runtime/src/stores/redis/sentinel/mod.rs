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
mod node;
mod votes;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Value;
use tokio::task::JoinSet;

pub(super) use self::follow::follow;
use self::node::Sentinel;
use self::votes::Votes;
use super::errors::Place;
use super::settings::{self, FILES, Server, Settings};
use crate::backend::BackendError;
use crate::deadline::{Deadline, ManagerClock};
use crate::limits;
use crate::stores::address::Address;
use crate::stores::url::{Form, StoreUrl};

static FORM: Form = Form {
    store: "Redis",
    scheme: "redis+sentinel",
    encrypted: Some("rediss+sentinel"),
    example: "redis+sentinel://host1,host2,host3/mymaster",
    port: 26379,
    options: &["db", "replicas", "sentinel_username", "sentinel_password"],
    files: FILES,
};

/// Who says which server is the master.
pub(super) struct Sentinels {
    master: String,
    nodes: Vec<Sentinel>,
    /// Where the master was when they were last asked, if they agreed.
    located: Mutex<Option<Address>>,
}

/// The user and password are those of the master.
pub(super) fn read(url: &str) -> Result<(Settings, Arc<Sentinels>), BackendError> {
    let url = FORM.read(url)?;
    let (master, database) = url.path.split_once('/').unwrap_or((url.path, ""));
    let master = url.decoded(master)?;
    if master.is_empty() {
        return Err(url.invalid(format!(
            "behind the sentinels comes the name of the master, as in {}",
            FORM.example
        )));
    }
    let database = match url.option("db") {
        Some(db) if !database.is_empty() && db != database => {
            return Err(url.invalid("it names two databases, in its path and by `db`"));
        }
        Some(db) => db,
        None => database,
    };
    let (user, password) = (
        url.option("sentinel_username"),
        url.option("sentinel_password"),
    );
    if user.is_some() && password.is_none() {
        return Err(url.invalid("`sentinel_username` needs a `sentinel_password`"));
    }
    let nodes = Settings::of_servers(&url, database)?;
    let of_master = nodes.first().cloned();
    let of_master = of_master.ok_or_else(|| url.invalid("it names no sentinel"))?;
    let nodes = nodes
        .into_iter()
        .zip(&url.hosts)
        .map(|(node, address)| Sentinel {
            address: address.clone(),
            settings: Settings {
                login: settings::login(user, password),
                ..node
            },
        });
    let sentinels = Sentinels {
        master,
        nodes: nodes.collect(),
        located: Mutex::default(),
    };
    let settings = Settings {
        server: Server::Master(sentinels.master.as_str().into()),
        replicas: replicas(&url)?,
        ..of_master
    };
    Ok((settings, Arc::new(sentinels)))
}

fn replicas(url: &StoreUrl<'_>) -> Result<usize, BackendError> {
    let Some(text) = url.option("replicas") else {
        return Ok(0);
    };
    let number = text.parse();
    let number = number.map_err(|_| url.invalid("`replicas` is a number, such as 1"))?;
    let within = limits::REPLICAS.within(number);
    within.map_err(|reason| url.invalid(format!("`replicas`: {reason}")))?;
    Ok(number)
}

impl Sentinels {
    /// The name of the master.
    pub(super) fn master(&self) -> &str {
        &self.master
    }

    /// The master if it is known where that is, or else the sentinels.
    pub(super) fn servers(&self) -> (String, Vec<String>) {
        let master = &self.master;
        match &*self.located() {
            Some(address) => (
                format!("redis master `{master}`"),
                vec![address.to_string()],
            ),
            None => {
                let addresses = self.nodes.iter().map(|node| node.address.to_string());
                (
                    format!("the sentinels of redis master `{master}`"),
                    addresses.collect(),
                )
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
        clock: &ManagerClock,
        deadline: Deadline,
    ) -> Result<Address, BackendError> {
        let located = self.elect(place, clock, deadline).await;
        *self.located() = located.as_ref().ok().cloned();
        located
    }

    async fn elect(
        self: &Arc<Self>,
        place: &Place,
        clock: &ManagerClock,
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

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.nodes.iter().map(|node| node.address.to_string());
        f.debug_struct("Sentinels")
            .field("master", &self.master)
            .field("addresses", &addresses.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
