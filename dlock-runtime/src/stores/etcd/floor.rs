//! A floor for the tokens: a key, which every transaction that may end in a grant reads.
//!
//! Tokens are create-revisions, and nobody can move those. So the floor is added to them. A
//! grant rests on a transaction that finds nobody ahead, and adds what this has read: for
//! whoever comes behind, that is later, and finds the same floor or a higher one.

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp, TxnOpResponse};

use super::errors::foreign;
use super::names::LockName;
use super::store::EtcdStore;
use crate::deadline::Deadline;
use crate::store::Failure;

impl LockName {
    pub(super) fn get_floor(&self) -> TxnOp {
        TxnOp::get(self.floor(), None)
    }
}

/// The floor, by the answers of a transaction that has got it.
pub(super) fn found<'a>(
    answers: impl IntoIterator<Item = &'a TxnOpResponse>,
    name: &str,
    place: &str,
) -> Result<u64, Failure> {
    let found = answers.into_iter().find_map(|answer| match answer {
        TxnOpResponse::Get(found) => found
            .kvs()
            .first()
            .filter(|key| key.key() == name.as_bytes()),
        _ => None,
    });
    found.map_or(Ok(0), |key| read(key, place))
}

pub(super) fn read(key: &KeyValue, place: &str) -> Result<u64, Failure> {
    let number = key.value_str().ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let name = String::from_utf8_lossy(key.key());
        Failure::refused(foreign(place, &name))
    })
}

impl EtcdStore {
    /// Writes it, unless one as high is there.
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
            // Else somebody else has raised it meanwhile.
            if members.txn(raise, deadline).await?.succeeded() {
                return Ok(());
            }
        }
    }
}
