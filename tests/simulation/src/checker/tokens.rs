//! Tokens of one key rise from grant to grant, hand-overs included.

use dlock::backend::Mode;

use crate::history::{Key, State};

/// What is wrong with entering by this token: the key, the token, that of the one
/// before, and what to say. Who shares a lock may have come in by an older one.
pub(super) fn rises(
    state: &State,
    key: Key,
    token: u64,
    mode: Mode,
) -> Option<(Key, u64, u64, String)> {
    let last = state.last.get(&key)?;
    let excluded = match mode.is_shared() {
        true => &last[..1],
        false => &last[..],
    };
    let before = excluded.iter().flatten().map(|body| &state.bodies[*body]);
    let tokens = before.flat_map(|body| body.keys.iter().filter(|(known, _)| *known == key));
    let highest = tokens.map(|(_, token)| *token).max()?;
    let what = || format!("key {key}: token {token} is not above {highest} of a grant before");
    (token <= highest).then(|| (key, token, highest, what()))
}
