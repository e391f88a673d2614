//! What the servers report about themselves, for people.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::names;
use super::nodes::next_number;
use super::session::{AT_ONCE, Session};
use super::store::ZooKeeperStore;
use crate::backend::{Finding, Level};
use crate::deadline::Deadline;
use crate::key::Shown;

/// The most that is read of an answer; servers say less.
const LONGEST_ANSWER: u64 = 1 << 16;

/// For how many locks the numbers of their folders are looked at.
const FOLDERS: usize = 10 * AT_ONCE;

/// A member of the ensemble that votes or observes, from the configuration of the ensemble.
#[derive(Debug, PartialEq, Eq)]
struct Member {
    /// For example `server.3`.
    name: String,
    votes: bool,
    /// The address for clients, if the configuration has one.
    clients: Option<String>,
}

/// The outcome of asking a server for its version.
enum VersionAnswer {
    /// The version, and the mode, such as `follower`.
    Said(String, String),
    /// It answers, but without a version.
    Silent,
    /// It takes connections, but does not answer.
    Hangs,
    NotReached(String),
}

impl ZooKeeperStore {
    pub(super) async fn look_at_servers(&self, deadline: Deadline) -> Vec<Finding> {
        let Ok(session) = self.ensemble.session(deadline).await else {
            return Vec::new();
        };
        let mut found = vec![self.session_timeout(&session), self.remembering(&session)];
        // The server of this session may be one that hangs.
        let in_time = deadline.within(deadline.remaining() / 2);
        let members = members_of(&session, in_time).await;
        found.push(self.ensemble_of(&session, members.as_deref()));
        found.extend(self.versions(members.unwrap_or_default(), deadline).await);
        found.push(Finding::new(
            Level::Ok,
            "persistence",
            format!(
                "{}: what was confirmed is on the disks of a majority, unless servers run with \
                 `forceSync=no`, which they tell no client",
                session.place
            ),
        ));
        found.extend(self.numbers(&session, deadline).await);
        found
    }

    /// Whether the session timeout is the one that was asked for.
    fn session_timeout(&self, session: &Session) -> Finding {
        let (asked, given) = (
            self.ensemble.settings.session_timeout,
            session.client.session_timeout(),
        );
        let (place, longest) = (&session.place, session.longest);
        let lasts =
            format!("{place}: a session lasts {given:?}, and a lease {longest:.1?} at most");
        let what = match () {
            () if given < asked => format!(
                "{lasts}: the servers give no {asked:?}; raise their `maxSessionTimeout`, or ask \
                 for a `session_timeout` that they give"
            ),
            () if given > asked => format!(
                "{lasts}: the servers give no less, and keep the locks of a dead process for so \
                 long; lower their `minSessionTimeout`, or ask for a `session_timeout` that they \
                 give"
            ),
            () => return Finding::new(Level::Ok, "session", lasts),
        };
        Finding::new(Level::Warn, "session", what)
    }

    fn remembering(&self, session: &Session) -> Finding {
        let place = &session.place;
        let what = match self.ensemble.remembers.get() {
            Some(true) => "has nodes that end after a time, so `once` works",
            _ => {
                "has no nodes that end after a time, so `once` is refused; it needs \
                 `zookeeper.extendedTypesEnabled=true` on all servers"
            }
        };
        Finding::new(Level::Ok, "once", format!("{place}: {what}"))
    }

    /// How many servers there are, and whether the URL names them.
    fn ensemble_of(&self, session: &Session, members: Option<&[Member]>) -> Finding {
        let place = &session.place;
        let (level, what) = match members {
            None => (
                Level::Ok,
                "it is not told which servers there are (/zookeeper/config cannot be read)"
                    .to_owned(),
            ),
            Some([]) => (
                Level::Ok,
                "one server for itself: while it is down, nobody gets a lock".to_owned(),
            ),
            Some(members) => {
                let voters = members.iter().filter(|member| member.votes).count();
                let named = self.ensemble.settings.hosts.len();
                let all = members.len();
                match () {
                    () if named < all => (
                        Level::Warn,
                        format!(
                            "the ensemble has {all} servers, and the URL names {named}; name all \
                             of them, so that one that is down is in nobody's way"
                        ),
                    ),
                    () if voters == 2 => (
                        Level::Warn,
                        "of two servers none may be down; run three".to_owned(),
                    ),
                    () => (
                        Level::Ok,
                        format!(
                            "{voters} servers vote, and {} may be down",
                            (voters - 1) / 2
                        ),
                    ),
                }
            }
        };
        Finding::new(level, "ensemble", format!("{place}: {what}"))
    }

    /// The version of each server that is known.
    async fn versions(&self, members: Vec<Member>, deadline: Deadline) -> Vec<Finding> {
        let settings = &self.ensemble.settings;
        if settings.encrypted {
            let what = "which versions the servers are is not told over TLS";
            return vec![Finding::new(Level::Ok, "version", what)];
        }
        let named: BTreeSet<_> = settings.hosts.iter().cloned().collect();
        let others = members.into_iter().filter_map(|member| {
            let host = member.clients.filter(|host| !named.contains(host))?;
            Some((host, Some(member.name)))
        });
        let others: Vec<_> = others.collect();
        let all = named.iter().map(|host| (host.clone(), None)).chain(others);
        let looks = all.map(async |(host, member)| {
            let asked = self.asked(&host, deadline).await;
            let place = match &member {
                Some(name) => format!("zookeeper at {host} ({name})"),
                None => format!("zookeeper at {host}"),
            };
            let (level, what) = match asked {
                VersionAnswer::Said(version, mode) => {
                    (Level::Ok, format!("version {version}, {mode}"))
                }
                VersionAnswer::Silent => (
                    Level::Ok,
                    "does not say which version it is; let it answer `srvr` \
                     (4lw.commands.whitelist)"
                        .to_owned(),
                ),
                VersionAnswer::Hangs => (
                    Level::Warn,
                    "it takes connections and does not answer; locks go on with the others while \
                     they are more than half"
                        .to_owned(),
                ),
                // Whether the servers of the URL can be reached is another finding.
                VersionAnswer::NotReached(_) if member.is_none() => return None,
                VersionAnswer::NotReached(why) => (
                    Level::Warn,
                    format!("a member of the ensemble that cannot be reached from here: {why}"),
                ),
            };
            Some(Finding::new(level, "version", format!("{place}: {what}")))
        });
        join_all(looks).await.into_iter().flatten().collect()
    }

    /// Asks a server for its version. No request of the client does that.
    async fn asked(&self, host: &str, deadline: Deadline) -> VersionAnswer {
        let context = &self.ensemble.context;
        let limit = deadline.min(context.time.after(context.patience()));
        let mut is_connected = false;
        let asking = async {
            let mut connection = TcpStream::connect(host).await?;
            is_connected = true;
            connection.write_all(b"srvr").await?;
            let mut answer = Vec::new();
            let mut answering = connection.take(LONGEST_ANSWER);
            answering.read_to_end(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        match context.time.bound(limit, asking).await {
            Err(_) if is_connected => VersionAnswer::Hangs,
            Err(_) => VersionAnswer::NotReached("it does not answer".to_owned()),
            Ok(Err(error)) => VersionAnswer::NotReached(error.to_string()),
            Ok(Ok(answer)) => version(&String::from_utf8_lossy(&answer)),
        }
    }

    /// The folders that have almost used up the numbers of their nodes.
    async fn numbers(&self, session: &Session, deadline: Deadline) -> Vec<Finding> {
        let root = &self.ensemble.settings.root;
        let Ok((folders, _)) = session.list(root, false, deadline).await else {
            return Vec::new();
        };
        let locks = folders.iter().filter(|name| names::key(name).is_some());
        let paths: Vec<_> = locks
            .take(FOLDERS)
            .map(|name| names::join(root, name))
            .collect();
        let mut found = Vec::new();
        for paths in paths.chunks(AT_ONCE) {
            let Ok(looked) = session.read(root, paths, deadline).await else {
                return found;
            };
            for (path, looked) in paths.iter().zip(looked) {
                let next = looked.map(|(_, stat)| next_number(stat.cversion, stat.num_children));
                if let Some(percent) = next.ok().and_then(names::used_up) {
                    let path = Shown(path);
                    let what = format!(
                        "{}: {path} has used {percent}% of the numbers of its nodes, and nobody \
                         gets that lock behind the last; delete {path} while it is empty",
                        session.place
                    );
                    found.push(Finding::new(Level::Warn, "numbers", what));
                }
            }
        }
        found
    }
}

/// The members of the ensemble. `None`: its configuration cannot be read. Empty: it is a single
/// server.
async fn members_of(session: &Session, deadline: Deadline) -> Option<Vec<Member>> {
    let config = session.ask("/zookeeper/config", deadline, |client| client.get_config());
    let (config, _) = config.await.ok()?.0?;
    Some(members(&String::from_utf8_lossy(&config)))
}

/// Reads lines like `server.1=10.0.0.1:2888:3888:participant;0.0.0.0:2181`.
fn members(config: &str) -> Vec<Member> {
    let members = config.lines().filter_map(|line| {
        let (name, rest) = line.split_once('=')?;
        let name = name.trim().strip_prefix("server.")?;
        let (peers, clients) = rest.split_once(';').unwrap_or((rest, ""));
        // A member may have several addresses.
        let first = peers.split('|').next().unwrap_or_default().trim();
        let host = match first.strip_prefix('[') {
            Some(address) => format!("[{}]", address.split(']').next()?),
            None => first.split(':').next()?.to_owned(),
        };
        let clients = match clients.trim().rsplit_once(':') {
            Some(("" | "0.0.0.0" | "[::]" | "[0:0:0:0:0:0:0:0]", port)) => Some((&*host, port)),
            Some((address, port)) => Some((address, port)),
            None => Some((&*host, clients.trim())),
        };
        let clients = clients.filter(|(_, port)| port.parse::<u16>().is_ok());
        Some(Member {
            name: format!("server.{}", Shown(name)),
            votes: !peers.ends_with(":observer"),
            clients: clients.map(|(address, port)| format!("{address}:{port}")),
        })
    });
    members.collect()
}

/// Reads the answer to `srvr`.
fn version(answer: &str) -> VersionAnswer {
    let line = |start: &str| {
        let mut lines = answer.lines();
        let rest = lines.find_map(|line| line.strip_prefix(start))?;
        rest.split([',', '-'])
            .next()
            .map(|word| Shown(word.trim()).to_string())
    };
    match (line("Zookeeper version:"), line("Mode:")) {
        (Some(version), Some(mode)) => VersionAnswer::Said(version, mode),
        _ => VersionAnswer::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_where_clients_find_them() {
        let config = "server.1=10.0.0.1:2888:3888:participant;0.0.0.0:2181\n\
                      server.2=zk2:2888:3888:participant;10.1.0.2:2182\n\
                      server.3=[fd00::3]:2888:3888|zk3:2888:3888:observer;2183\n\
                      server.4=zk4:2888:3888:participant\nversion=100000000";
        let member = |number: u8, votes, clients: &str| Member {
            name: format!("server.{number}"),
            votes,
            clients: (!clients.is_empty()).then(|| clients.to_owned()),
        };
        let all = [
            member(1, true, "10.0.0.1:2181"),
            member(2, true, "10.1.0.2:2182"),
            member(3, false, "[fd00::3]:2183"),
            member(4, true, ""),
        ];
        assert_eq!(members(config), all);
        for other in ["", "version=0", "group.1=1:2", "nonsense"] {
            assert_eq!(members(other), [], "{other}");
        }
    }

    #[test]
    fn a_server_says_its_version_or_not() {
        let said = "Zookeeper version: 3.8.0-5a02a05, built on 2022-02-25\nMode: follower\n";
        assert!(matches!(version(said), VersionAnswer::Said(version, mode)
            if version == "3.8.0" && mode == "follower"));
        let refused = "srvr is not executed because it is not in the whitelist.\n";
        for other in [refused, "", "HTTP/1.1 400 Bad Request"] {
            assert!(matches!(version(other), VersionAnswer::Silent), "{other}");
        }
    }
}
