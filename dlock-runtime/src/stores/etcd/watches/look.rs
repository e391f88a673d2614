//! What a silent stream costs: a look at some of the keys every second.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};

use super::Watches;
use crate::deadline::Deadline;
use crate::store::Failure;
use crate::stores::etcd::errors::Failed;

/// How often some of the keys are looked at.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// How many: servers take 128 operations in a transaction (`--max-txn-ops`).
const KEYS_AT_ONCE: usize = 100;

impl Watches {
    /// Looks at the next of the keys, and tells those who listen for one that has
    /// gone.
    pub(crate) async fn look(&self, deadline: Deadline) -> Result<(), Failure> {
        let keys = self.next_to_look_at();
        if keys.is_empty() {
            return Ok(());
        }
        let began = self.members.time.now();
        let keys_only = GetOptions::new().with_keys_only();
        let gets: Vec<_> = keys
            .iter()
            .map(|(_, key)| TxnOp::get(&**key, Some(keys_only.clone())))
            .collect();
        let txn = Txn::new().and_then(gets);
        let read = |mut client: etcd_client::Client| async move { client.txn(txn).await };
        let answer = self.members.ask(deadline, read).await;
        let answer = answer.map_err(Failed::of_a_read)?;
        let mut silent = false;
        for ((id, _), found) in keys.iter().zip(answer.value.op_responses()) {
            let TxnOpResponse::Get(found) = found else {
                continue;
            };
            let there = found.kvs().first().map(KeyValue::create_revision);
            silent |= self.looked(*id, there) && self.inner().heard + PERIOD < began;
        }
        if silent {
            self.silent.notify_one();
        }
        Ok(())
    }

    /// The key of this watch is there that was created then, or none. Whether
    /// somebody has missed that.
    fn looked(&self, id: i64, there: Option<i64>) -> bool {
        let has_ended = |created| there.is_none_or(|there| there > created);
        let mut inner = self.inner();
        let missed = inner.of(id).is_some_and(|watched| {
            let mut listeners = watched.listeners.values();
            listeners.any(|listener| has_ended(listener.created))
        });
        if missed {
            self.end_those(inner, id, has_ended);
        }
        missed
    }

    /// The watches in turn, and their keys.
    fn next_to_look_at(&self) -> Vec<(i64, Arc<str>)> {
        let mut inner = self.inner();
        let mut ids: Vec<i64> = inner.by_id.keys().copied().collect();
        let looked_at = inner.looked_at;
        // Those that come after the last one first.
        ids.sort_unstable_by_key(|&id| (id <= looked_at, id));
        ids.truncate(KEYS_AT_ONCE);
        inner.looked_at = ids.last().copied().unwrap_or(0);
        let keys = ids.into_iter();
        keys.filter_map(|id| Some((id, Arc::clone(inner.by_id.get(&id)?))))
            .collect()
    }
}
