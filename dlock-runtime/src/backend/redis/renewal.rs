//! What every renewal has in common, with replicas to confirm it or without.

use redis::Value;

use super::call::Answer;
use crate::backend::Renewed;

/// So many leases are extended in one go. More would keep the server from
/// answering others, and their answers from being read.
pub(super) const RENEWED_AT_ONCE: usize = 256;

/// The answer to a renewal.
pub(super) fn read_renewal(answer: &Answer) -> Option<Renewed> {
    match answer.value {
        Value::Int(0) => Some(Renewed::Gone),
        Value::Int(_) => Some(Renewed::Extended {
            sent_at: answer.sent_at.into(),
        }),
        _ => None,
    }
}
