//! `redis+sentinel://`: a master that is known by its name, and sentinels that say where it is.
//!
//! No single sentinel is trusted: a server counts as the master if more than half of all
//! sentinels in the URL name it, and if its own role is master. This is asked again for each
//! connection ([`Sentinels::locate`]), and in the background, since a master that was replaced
//! may not know it ([`follow`]).

mod follow;
mod votes;

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, Value};
use tokio::sync::watch;

pub(super) use self::follow::follow;
use self::votes::{Vote, Votes};
use super::commands;
use super::durability;
use super::endpoint::Endpoint;
use super::errors::Role;
use super::names::Keyspace;
use super::settings::{self, FILES, Settings};
use super::socket::ask_once;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::backend::{BackendError, Finding, Level};
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::limits;
use crate::outlast::outlast;
use crate::stores::address::{Address, can_be_shown};
use crate::stores::url::{Form, StoreUrl};

static FORM: Form = Form {
    store: "Redis",
    scheme: "redis+sentinel",
    encrypted: Some("rediss+sentinel"),
    example: "redis+sentinel://host1,host2,host3/mymaster",
    port: Some(26379),
    options: &[
        "db",
        "replicas",
        "sentinel_username",
        "sentinel_password",
        "layout",
        "recipe",
        "fair_wait",
    ],
    files: FILES,
};

/// The sentinels of a master.
pub(super) struct Sentinels {
    master: String,
    nodes: Vec<Address>,
    /// How to connect to the sentinels and log in.
    settings: Settings,
    /// Where the master was at the last question, if the sentinels agreed.
    located: watch::Sender<Option<Address>>,
}

/// Reads a URL. The returned settings have the user and password of the master.
pub(super) fn read(url: &str) -> Result<(Settings, Sentinels), BackendError> {
    let url = FORM.read(url)?;
    let (master, database) = url.path.split_once('/').unwrap_or((url.path, ""));
    let master = url.decoded(master)?;
    if !can_be_shown(&master) {
        return Err(url.invalid("the master's name has a character that cannot be shown"));
    }
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
    let settings = Settings::read(&url, database)?;
    let sentinels = Sentinels {
        master,
        settings: Settings {
            login: settings::login(user, password),
            ..settings.clone()
        },
        located: watch::Sender::default(),
        nodes: url.hosts.clone(),
    };
    let settings = Settings {
        replicas: replicas(&url)?,
        ..settings
    };
    Ok((settings, sentinels))
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
    /// The same, over encrypted connections.
    #[cfg(feature = "tls")]
    pub(super) fn encrypted(&self, tls: &Tls) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self {
            master: self.master.clone(),
            nodes: self.nodes.clone(),
            settings: Settings {
                tls: Some(tls.clone()),
                ..self.settings.clone()
            },
            located: watch::Sender::default(),
        })
    }

    /// The name of the master.
    pub(super) fn master(&self) -> &str {
        &self.master
    }

    /// The name of [`hosts`](Self::hosts) in messages.
    pub(super) fn name(&self) -> String {
        let whose = match *self.located.borrow() {
            Some(_) => "",
            None => "the sentinels of ",
        };
        format!("{whose}redis master `{}`", self.master)
    }

    /// The master, if its address is known, or else the sentinels.
    pub(super) fn hosts(&self) -> Vec<String> {
        match &*self.located.borrow() {
            Some(address) => vec![address.to_string()],
            None => self.nodes.iter().map(Address::to_string).collect(),
        }
    }

    /// Whether the master is not known to be at this address.
    fn is_elsewhere(&self, address: &Address) -> bool {
        self.located.borrow().as_ref() != Some(address)
    }

    /// Resolves when most sentinels have said that the master is at another address.
    pub(super) async fn moves_from(&self, address: &Address) {
        let moved = |located: &Option<Address>| located.as_ref().is_some_and(|at| at != address);
        // Cannot fail: `self` has the sender.
        let _ = self.located.subscribe().wait_for(moved).await;
    }

    /// Asks all sentinels where the master is, and returns as soon as enough of them agree.
    pub(super) async fn locate(
        &self,
        endpoint: &Endpoint,
        time: &Time,
        deadline: Deadline,
    ) -> Result<Address, BackendError> {
        let mut asking = self.ask_each(time, deadline);
        let names = (0..self.nodes.len()).map(|index| self.endpoint(index).to_string());
        let mut votes = Votes::new(names.collect());
        let mut winner = None;
        while winner.is_none()
            && let Some((index, vote)) = asking.next().await
        {
            votes.set(index, vote);
            winner = votes.winner().cloned();
        }
        let before = self.located.send_replace(winner.clone());
        if let (Some(before), Some(now)) = (before, &winner)
            && before != *now
        {
            outlast(|| {
                tracing::info!(
                    target: "dlock::store",
                    "redis master `{}` is at {now} now, say its sentinels", self.master
                );
            });
        }
        winner.ok_or_else(|| votes.no_winner(endpoint))
    }

    /// What each sentinel reports, for people: locks work as long as enough sentinels agree.
    pub(super) async fn look(&self, time: &Time, deadline: Deadline) -> Vec<Finding> {
        let mut said: Vec<_> = self.ask_each(time, deadline).collect().await;
        said.sort_unstable_by_key(|(index, _)| *index);
        let located = self.located.borrow().clone();
        let told = said.into_iter().map(|(index, vote)| {
            let (name, sentinel) = (&self.master, self.endpoint(index));
            let (level, what) = match vote.map(|vote| vote.master) {
                Err(error) => (Level::Warn, error.to_string()),
                Ok(None) => (Level::Warn, format!("{sentinel} knows no master `{name}`")),
                Ok(Some(at)) if located.as_ref() == Some(&at) => {
                    (Level::Ok, format!("{sentinel}: `{name}` is at {at}"))
                }
                Ok(Some(at)) => (
                    Level::Warn,
                    format!("{sentinel} says that `{name}` is at {at}, unlike most of them"),
                ),
            };
            Finding::new(level, "server", what)
        });
        told.collect()
    }

    /// Asks each sentinel where the master is.
    fn ask_each<'a>(
        &'a self,
        time: &'a Time,
        deadline: Deadline,
    ) -> FuturesUnordered<impl Future<Output = (usize, Result<Vote, BackendError>)> + 'a> {
        let question = Arc::new(self.question());
        let nodes = self.nodes.iter().enumerate();
        let asking = nodes.map(|(index, node)| {
            let question = Arc::clone(&question);
            async move {
                let endpoint = self.endpoint(index);
                let asked = ask_once(&question, node, &self.settings, &endpoint, time, deadline);
                let answers = asked.await;
                (index, answers.and_then(|answers| self.read(index, answers)))
            }
        });
        asking.collect()
    }

    /// A sentinel, as it is named in messages.
    fn endpoint(&self, index: usize) -> Endpoint {
        let secret = self.settings.login.password();
        let endpoint = Endpoint::new(Role::Sentinel, "sentinel", Keyspace::Server, secret);
        endpoint.found_at(&self.nodes[index])
    }

    /// Asks for the id of a sentinel, and for the server that it takes for the master.
    fn question(&self) -> Pipeline {
        commands::whereabouts(&self.master)
    }

    /// Reads the answer of a sentinel.
    fn read(&self, index: usize, answers: Vec<Value>) -> Result<Vote, BackendError> {
        let endpoint = self.endpoint(index);
        let Ok([id, master]) = <[Value; 2]>::try_from(answers) else {
            return Err(endpoint.unexpected_answer());
        };
        let master = match master {
            Value::Nil => None,
            Value::ServerError(error) => return Err(endpoint.refused(&error)),
            master => {
                let (host, port): (String, _) =
                    redis::from_redis_value(master).map_err(|_| endpoint.unexpected_answer())?;
                Address::at(&host, port)
            }
        };
        Ok(Vote {
            // `None` if dlock's user may not ask for it, or if the sentinel is too old.
            sentinel: redis::from_redis_value(id).ok(),
            master,
        })
    }

    /// Warns if the master has fewer replicas than a lock needs. `role` is its answer to `ROLE`.
    pub(super) fn warn_of_replicas(&self, role: &Value, needed: usize) {
        if let Some((_, Some(replicas))) = durability::role(role)
            && replicas < needed
        {
            tracing::warn!(
                "redis master `{}` has {} replicas now, and no lock can be had without the \
                 {needed} that `replicas={needed}` asks for",
                self.master,
                replicas
            );
        }
    }

    /// Warns if the number of sentinels is not a good one.
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
