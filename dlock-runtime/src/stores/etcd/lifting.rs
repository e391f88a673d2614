//! Raising the [floor](super::floor) of the tokens.

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp, TxnOpResponse};

use super::floor::found;
use super::store::EtcdStore;
use crate::deadline::Deadline;
use crate::store::Failure;

impl EtcdStore {
    /// Writes the floor, unless it is as high already.
    pub(super) async fn raise_floor(&self, floor: u64, deadline: Deadline) -> Result<(), Failure> {
        let members = &self.members;
        let name = members.settings.names.floor();
        loop {
            let look = Txn::new().and_then([TxnOp::get(&*name, None)]);
            let answers = members.txn(look, deadline).await?.op_responses();
            if found(&answers, &name, &members.settings.place())? >= floor {
                return Ok(());
            }
            let seen = answers.iter().find_map(|answer| match answer {
                TxnOpResponse::Get(found) => found.kvs().first().map(KeyValue::mod_revision),
                _ => None,
            });
            let is_same = Compare::mod_revision(&*name, CompareOp::Equal, seen.unwrap_or(0));
            let put = TxnOp::put(&*name, floor.to_string(), None);
            let raise = Txn::new().when([is_same]).and_then([put]);
            // If this fails, another process has written the floor meanwhile.
            if members.txn(raise, deadline).await?.succeeded() {
                return Ok(());
            }
        }
    }
}
