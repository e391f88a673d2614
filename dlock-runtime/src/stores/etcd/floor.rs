//! The floor of the tokens: a key that is read by every transaction that may end in a grant.
//!
//! Tokens are create-revisions, which nobody can raise. So the floor is added to them. A grant
//! rests on a transaction that finds nobody ahead, and adds the floor that this transaction has
//! read. That of the next holder is later, and reads the same floor or a higher one.

use etcd_client::{KeyValue, TxnOp, TxnOpResponse};

use super::errors::foreign;
use super::names::LockName;
use crate::store::Failure;

impl LockName {
    pub(super) fn get_floor(&self) -> TxnOp {
        TxnOp::get(self.floor(), None)
    }
}

/// The floor, from the answers of a transaction that has read it.
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
        Failure::stop(foreign(place, &name))
    })
}
