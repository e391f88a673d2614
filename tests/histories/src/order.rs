//! Whether tokens rise from grant to grant. What the locks protect sees only who
//! comes to it, and in a while in which leases may end early it cannot tell who came
//! too late from who was given an old token. The calls can: who asked after somebody
//! else was done has the newer one, whatever the clocks of the servers say.

use crate::call::Call;
use crate::moment::Moment;

/// What is wrong with the tokens of one lock: a call, and one that was over before it
/// began and had no older token. In between, the store has not forgotten anything.
///
/// Of two that share a lock, the later one may have the older token: a permit is handed over
/// within its process, beside newer ones.
pub(crate) fn violation<'a>(
    calls: impl Iterator<Item = &'a Call>,
    forgotten: &[(Moment, Moment)],
) -> Option<(&'a Call, &'a Call)> {
    let mut by_end: Vec<_> = calls.filter(|call| call.token > 0).collect();
    let mut by_begin = by_end.clone();
    by_end.sort_by_key(|call| call.to);
    by_begin.sort_by_key(|call| call.from);
    let mut ended = by_end.into_iter().peekable();
    // Of all, and of those that were alone.
    let mut newest: [Option<&Call>; 2] = [None; 2];
    for call in by_begin {
        while let Some(over) = ended.next_if(|over| over.to < call.from) {
            let [all, alone] = &mut newest;
            for newest in [Some(all), Some(alone).filter(|_| !over.policy.shares())] {
                let Some(newest) = newest else { continue };
                let older = newest.is_none_or(|newest| {
                    let between =
                        |(_, until): &(Moment, Moment)| newest.from < *until && *until <= over.from;
                    newest.token < over.token || forgotten.iter().any(between)
                });
                if older {
                    *newest = Some(over);
                }
            }
        }
        let Some(newest) = newest[usize::from(call.policy.shares())] else {
            continue;
        };
        let between = |(from, until): &(Moment, Moment)| newest.from < *until && *from < call.to;
        if call.token <= newest.token && !forgotten.iter().any(between) {
            return Some((newest, call));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Call, Moment, violation};
    use crate::call::{Outcome, Policy};

    fn call(from: u64, to: u64, token: u64) -> Call {
        let moment = |at: u64| at.to_string().parse::<Moment>().expect("a number");
        Call {
            key: 0,
            policy: Policy::Patiently,
            from: moment(from),
            entered: None,
            left: None,
            to: moment(to),
            still: std::time::Duration::ZERO,
            token,
            outcome: Outcome::Done,
        }
    }

    fn is_seen(calls: &[Call], forgotten: &[(u64, u64)]) -> bool {
        let moment = |at: u64| at.to_string().parse().expect("a number");
        let forgotten: Vec<_> = forgotten
            .iter()
            .map(|(from, until)| (moment(*from), moment(*until)))
            .collect();
        violation(calls.iter(), &forgotten).is_some()
    }

    #[test]
    fn tokens_that_rise_are_right() {
        assert!(!is_seen(&[call(1, 2, 64), call(3, 4, 128)], &[]));
        // Who was first is not known, nor who had the lock at all.
        assert!(!is_seen(&[call(1, 3, 128), call(2, 4, 64)], &[]));
        assert!(!is_seen(&[call(1, 2, 128), call(3, 4, 0)], &[]));
    }

    #[test]
    fn a_token_that_does_not_rise_is_seen() {
        assert!(is_seen(&[call(3, 4, 64), call(1, 2, 128)], &[]));
        assert!(is_seen(&[call(1, 2, 64), call(3, 4, 64)], &[]));
    }

    #[test]
    fn who_shares_a_lock_may_have_an_older_token_than_another_who_did() {
        for policy in [Policy::Shares, Policy::Reads] {
            let shares = |call| Call { policy, ..call };
            let (newer, older) = (call(1, 2, 128), call(3, 4, 65));
            let both = [shares(newer.clone()), shares(older.clone())];
            assert!(!is_seen(&both, &[]));
            assert!(is_seen(&[newer.clone(), shares(older.clone())], &[]));
            assert!(is_seen(&[shares(newer), older], &[]));
        }
    }

    #[test]
    fn a_store_that_forgets_may_begin_again() {
        let calls = [call(1, 2, 640), call(5, 6, 64), call(7, 8, 63)];
        assert!(!is_seen(&calls[..2], &[(3, 4)]));
        assert!(is_seen(&calls[..2], &[(7, 8)]));
        assert!(is_seen(&calls, &[(3, 4)]));
    }
}
