//! Renews locks. It is not enough that the lease lives, since an operator may have deleted the key.
//! So the key is read too, by a transaction that a member which is cut off from the others cannot
//! answer.
//!
//! With its first renewal, a lock that was waited for writes into its key since when it is held. So
//! a shorter section pays nothing for that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::Txn;
use futures_util::future::join_all;

use super::leases::seconds;
use super::members::KEYS_AT_ONCE;
use super::queue::Key;
use super::store::EtcdStore;
use crate::backend::{Renewed, Request};
use crate::deadline::Deadline;
use crate::store::{Due, Failure, Next};

type Answer = Result<Renewed, Failure>;

impl EtcdStore {
    pub(super) async fn renew_all(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Answer> {
        let mut answers: Vec<Answer> = due.iter().map(|_| Ok(Renewed::Gone)).collect();
        let mut shared = Vec::new();
        for (due, answer) in due.iter_mut().zip(&mut answers) {
            let key = &mut due.record;
            if due.request.ttl == key.ttl {
                shared.push((key, answer));
            } else {
                // The lock is to end at another time than the lease that it shares.
                *answer = self.set_end(&due.request, key, deadline).await;
            }
        }
        let mut chunks: Vec<_> = shared.chunks_mut(KEYS_AT_ONCE).collect();
        while !chunks.is_empty() {
            let asked = chunks.iter_mut();
            let asked = asked.map(|chunk| self.renew_chunk(chunk, deadline));
            let told = join_all(asked).await;
            let asked = std::mem::take(&mut chunks).into_iter();
            for (chunk, told) in asked.zip(told) {
                match told {
                    Ok(()) => {}
                    // The server refuses a transaction as a whole, perhaps for one of its keys: the
                    // right to read that may be missing. The halves go together, since those that are
                    // not refused must be renewed in time.
                    Err(failure) if failure.next == Next::Stop && chunk.len() > 1 => {
                        let (some, others) = chunk.split_at_mut(chunk.len() / 2);
                        chunks.extend([some, others]);
                    }
                    Err(failure) => {
                        for (_, answer) in chunk {
                            **answer = Err(failure.clone());
                        }
                    }
                }
            }
        }
        answers
    }

    async fn renew_chunk(
        &self,
        chunk: &mut [(&mut Key, &mut Answer)],
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let members = &self.members;
        let asked = members.time.now();
        // Short enough that another member can be asked before the leases end. Nothing of the batch
        // takes longer: what is not confirmed by then is asked for again, without the others.
        let shortest = chunk.iter().map(|(key, _)| key.ttl).min();
        let patience = members.patience_within(shortest.unwrap_or_default());
        let limit = deadline.min(members.time.after(patience));
        let keys = chunk.iter().map(|(key, _)| &*key.name.key);
        let confirm = chunk.iter().map(async |(key, _)| match key.fixed {
            // Its end was set, and must not be put off.
            Some((_, end)) if key.moved => Ok(Some(begin(end, key.ttl, asked))),
            _ => {
                let oldest = key.lease().demand(key.ttl, asked);
                key.lease().confirmed_since(oldest, limit).await
            }
        });
        let (found, confirmed) = tokio::join!(members.created_at(keys, limit), join_all(confirm));
        for (key, _) in &mut *chunk {
            if !std::mem::replace(&mut key.says_since, true) && key.since.is_some() {
                // Nothing depends on the answer, so nobody waits for it.
                let (members, say) = (Arc::clone(members), key.say_since());
                self.members.context.spawn(async move {
                    let _ = members.txn(say, members.patience()).await;
                });
            }
        }
        let known = found?.into_iter().zip(confirmed);
        for ((key, answer), (created, confirmed)) in chunk.iter_mut().zip(known) {
            **answer = match confirmed {
                _ if created != Some(key.create_revision) => Ok(Renewed::Gone),
                Ok(Some(sent_at)) => Ok(Renewed::Extended {
                    sent_at: sent_at.into(),
                }),
                Ok(None) => Ok(Renewed::Gone),
                Err(failure) => Err(failure),
            };
        }
        Ok(())
    }

    /// Makes the key end by itself when the ttl has passed, with a lease of its own: the shared
    /// lease goes on for others. A key that is attached to another lease keeps its create-revision,
    /// and so its place.
    async fn set_end(&self, request: &Request, key: &mut Key, deadline: Deadline) -> Answer {
        let asked = self.members.time.now();
        // A repeated attempt uses the same lease, since the first put may be run after the second.
        // It may come much later, and ask for the rest of the time only. So what counts is when the
        // lease ends, and not when it was granted.
        let (lease, end) = match key.fixed {
            Some(fixed) => fixed,
            None => {
                let granted = self.leases.grant(seconds(request.ttl), deadline).await?;
                let end = Deadline::from(granted.1, request.ttl);
                *key.fixed.insert((granted.0.id(), end))
            }
        };
        let txn = Txn::new().when([key.is_there()]).and_then([key.put(lease)]);
        if !self.members.txn(txn, deadline).await?.succeeded() {
            return Ok(Renewed::Gone);
        }
        key.moved = true;
        key.ttl = request.ttl;
        let sent_at = begin(end, request.ttl, asked);
        Ok(Renewed::Extended {
            sent_at: sent_at.into(),
        })
    }
}

/// When a lease of this ttl that ends at `end` began, but not later than `now`.
fn begin(end: Deadline, ttl: Duration, now: Instant) -> Instant {
    end.at().checked_sub(ttl).unwrap_or(now).min(now)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::backend::Mode;
    use crate::engine::context;
    use crate::store::Store as _;
    use crate::stores::etcd::lease::Lease;
    use crate::stores::etcd::places::Name;
    use crate::stores::etcd::settings::Settings;

    /// Nobody answers, and nobody confirms the leases. The short one is to be asked for elsewhere
    /// in time.
    #[tokio::test]
    async fn a_short_lease_does_not_wait_for_a_long_one() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let settings = Settings::from_url(&format!("etcd://{address}"), None).expect("a URL");
        let store = EtcdStore::open(settings, context());
        let time = store.members.time.clone();
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(60));
        let mut due = [short, long].map(|ttl| {
            let sent_at = time.now() - ttl / 10;
            let first = Lease::begin(1, 1, ttl, false, sent_at, time.clone());
            let key = Key {
                name: Name::given("key".to_owned(), "owner".to_owned()),
                lease_ref: Arc::new(first),
                create_revision: 1,
                ttl,
                fixed: None,
                moved: false,
                since: None,
                says_since: false,
                floor: 0,
            };
            Due::new(Request::new("key", Mode::Write, ttl), key)
        });
        let began = time.now();
        let patience = Duration::from_secs(20);
        let answers = store
            .renew_all(&mut due, Deadline::from(began, patience))
            .await;
        assert!(answers.iter().all(Result::is_err), "{answers:?}");
        let took = time.now().saturating_duration_since(began);
        assert!(took < patience / 2, "{took:?}");
        // Two thirds of its ttl are left when it is asked for.
        assert!(store.renews_within(patience, short) < short * 2 / 3);
        assert_eq!(store.renews_within(patience, long), patience);
    }
}
