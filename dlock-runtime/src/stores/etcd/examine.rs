//! What the members report about themselves, for people.
//!
//! It uses connections of its own, since those of the store belong to the manager's runtime.

use std::collections::{BTreeSet, HashSet};

use etcd_client::{Client, ConnectOptions, Error, MemberListResponse, StatusResponse};
use futures_util::future::join_all;

use super::errors;
use super::members::Members;
use crate::backend::{BackendError, Finding, Level};
use crate::deadline::Deadline;
use crate::key::Shown;

/// The quota of a server that was started without one, which no server reports.
/// (`DefaultQuotaBytes` in `server/storage/quota.go` of etcd.)
const USUAL_QUOTA: i64 = 2 << 30;

/// A member that has answered.
struct Answered {
    place: String,
    client: Client,
    status: StatusResponse,
}

impl Members {
    /// Looks at every member, also at those that the URL does not name; these are asked without a
    /// login. Whether a host of the URL can be reached is another finding.
    pub(super) async fn look_at_each(&self, deadline: Deadline) -> Vec<Finding> {
        // There are three questions, one after the other. Each leaves time for the next.
        let soon = || {
            let left = self.time.remaining(deadline);
            self.time.after(left.mul_f64(0.4))
        };
        let limit = soon();
        let named = self.settings.hosts.iter();
        let options = self.settings.connect_options(self.context.patience());
        let named = named.map(|host| {
            let url = self.settings.endpoint(host);
            self.status_of(url, options.clone(), limit)
        });
        let mut answered: Vec<Answered> = Vec::new();
        for member in join_all(named).await.into_iter().flatten() {
            // Two hosts of the URL may be one member.
            if answered.iter().all(|other| id(other) != id(&member)) {
                answered.push(member);
            }
        }
        let leads = |member: &&Answered| member.status.leader() != 0;
        let Some(one) = answered.iter().find(leads).or(answered.first()) else {
            return Vec::new();
        };
        let mut client = one.client.clone();
        let all = self.bound(&one.place, soon(), client.member_list()).await;
        let mut found = Vec::new();
        let clusters = answered.iter().filter_map(|one| one.status.header());
        let clusters: HashSet<_> = clusters.map(|header| header.cluster_id()).collect();
        if clusters.len() > 1 {
            let apart = "the hosts of the URL are not of one cluster: a lock of one is free in the \
                         other; name members of one";
            found.push(Finding::new(Level::Fail, "members", apart));
        }
        match all {
            Ok(all) => {
                let (others, finding) = self.roll_call(&all, &answered, soon()).await;
                answered.extend(others);
                found.push(finding);
            }
            Err(error) => {
                let who = format!("who else is in the cluster is not known: {error}");
                found.push(Finding::new(Level::Warn, "members", who));
            }
        }
        let mut alarms = BTreeSet::new();
        for member in &answered {
            found.extend(of_member(member));
            alarms.extend(member.status.errors().iter().map(|said| of_alarm(said)));
        }
        found.extend(alarms.into_iter().map(|(level, what)| {
            let what = format!("{}: {what}", self.settings.place());
            Finding::new(level, "alarm", what)
        }));
        found
    }

    /// Asks the members that have not answered yet. Returns those that answer now, and the finding
    /// whether all have.
    async fn roll_call(
        &self,
        all: &MemberListResponse,
        answered: &[Answered],
        limit: Deadline,
    ) -> (Vec<Answered>, Finding) {
        let cluster = all.header().map(|header| header.cluster_id());
        let is_this = |answered: &Answered, member: u64| id(answered) == cluster.zip(Some(member));
        let options = self.settings.anonymous_options(self.context.patience());
        let all = all.members();
        let others = all.iter().filter(|member| {
            let mut answered = answered.iter();
            !answered.any(|answered| is_this(answered, member.id()))
        });
        let asked = others.map(async |member| {
            let name = Shown(member.name());
            let mut last = format!("{name} has not started");
            for url in member.client_urls() {
                last = match self.status_of(url.clone(), options.clone(), limit).await {
                    Ok(answered) if is_this(&answered, member.id()) => return Ok(answered),
                    Ok(Answered { place, .. }) => {
                        format!("{name} (it says that it is at {place}, where another one answers)")
                    }
                    Err(error) => format!("{name} ({error})"),
                };
            }
            Err(last)
        });
        let (mut others, mut missing) = (Vec::new(), Vec::new());
        for member in join_all(asked).await {
            match member {
                Ok(member) => others.push(member),
                Err(who) => missing.push(who),
            }
        }
        let (number, place) = (all.len(), self.settings.place());
        let finding = if missing.is_empty() {
            let alone = match number {
                1 => ": while it is down, no lock is had or renewed",
                _ => "",
            };
            let what = format!("{place}: all members answer, {number}{alone}");
            Finding::new(Level::Ok, "members", what)
        } else {
            let what = format!(
                "{place}: {} of {number} members answer from here, {} must for locks to be had; \
                 silent: {}",
                number - missing.len(),
                number / 2 + 1,
                missing.join(", "),
            );
            Finding::new(Level::Warn, "members", what)
        };
        (others, finding)
    }

    /// The status of the member at this URL.
    async fn status_of(
        &self,
        url: String,
        options: ConnectOptions,
        limit: Deadline,
    ) -> Result<Answered, BackendError> {
        let place = url.split_once("://").map_or(&*url, |(_, host)| host);
        let place = Shown(place).to_string();
        let asked = async {
            let mut client = Client::connect([url], Some(options)).await?;
            let status = client.status().await?;
            Ok((client, status))
        };
        let (client, status) = self.bound(&place, limit, asked).await?;
        Ok(Answered {
            place,
            client,
            status,
        })
    }

    async fn bound<T>(
        &self,
        place: &str,
        limit: Deadline,
        asked: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, BackendError> {
        match self.time.bound(limit, Box::pin(asked)).await {
            Ok(answer) => answer.map_err(|error| errors::described(place, &error)),
            Err(_) => Err(BackendError::unavailable(format!("{place}: no answer"))),
        }
    }
}

/// The ids of its cluster and of the member itself.
fn id(member: &Answered) -> Option<(u64, u64)> {
    let header = member.status.header()?;
    Some((header.cluster_id(), header.member_id()))
}

fn of_member(Answered { place, status, .. }: &Answered) -> Vec<Finding> {
    let version = format!("{place}: version {}", Shown(status.version()));
    let mut found = vec![Finding::new(Level::Ok, "version", version)];
    if status.is_learner() {
        let learns = format!(
            "{place}: it is a learner, which has no vote and answers no request for a lock; \
             promote it, or leave it out of the URL"
        );
        found.push(Finding::new(Level::Warn, "members", learns));
    }
    found.push(space(place, status.db_size(), status.raft_used_db_size()));
    found
}

/// How full a database is. Locks write to it even when they are given back.
fn space(place: &str, size: i64, in_use: i64) -> Finding {
    let megabytes = |bytes: i64| format!("{:.1} MB", bytes as f64 / 1e6);
    let (all, used) = (megabytes(size), megabytes(in_use));
    if size < USUAL_QUOTA / 5 * 4 {
        let what = format!("{place}: the database has {all}, {used} of it in use");
        return Finding::new(Level::Ok, "space", what);
    }
    let what = format!(
        "{place}: the database has {all}, {used} of it in use. The quota is {} unless it was started \
         with another, and then no lock is had any more: compact and defragment it, or raise \
         --quota-backend-bytes",
        megabytes(USUAL_QUOTA),
    );
    Finding::new(Level::Warn, "space", what)
}

/// What an alarm means, which may be about one member or all.
fn of_alarm(said: &str) -> (Level, String) {
    let said = Shown(said.trim());
    let text = said.0;
    if text.contains("NOSPACE") {
        let full = format!(
            "the database is full, and no lock is had any more ({said}): compact and defragment it, \
             or raise --quota-backend-bytes; then `etcdctl alarm disarm`"
        );
        return (Level::Fail, full);
    }
    if text.contains("CORRUPT") {
        let corrupt = format!(
            "the members do not have the same data, so that a lock may be had twice ({said}): \
             replace the member that is named"
        );
        return (Level::Fail, corrupt);
    }
    (Level::Warn, said.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_is_nearly_full_is_told() {
        let [small, large] = [20_480, USUAL_QUOTA - 1].map(|size| space("a:2379", size, 4_096));
        assert_eq!((small.level, large.level), (Level::Ok, Level::Warn));
        assert!(small.message.contains("a:2379"), "{}", small.message);
        let advice = "--quota-backend-bytes";
        assert!(large.message.contains(advice), "{}", large.message);
        assert!(!small.message.contains(advice), "{}", small.message);
    }

    #[test]
    fn alarms_say_what_to_do() {
        for (said, level, advice) in [
            ("memberID:1 alarm:NOSPACE ", Level::Fail, "alarm disarm"),
            ("memberID:1 alarm:CORRUPT ", Level::Fail, "replace"),
            ("etcdserver: no leader", Level::Warn, "no leader"),
        ] {
            let (found, what) = of_alarm(said);
            assert_eq!(found, level, "{what}");
            assert!(what.contains(advice), "{what}");
        }
    }
}
