//! Checks whether a store can provide a lock with the requested options.

use std::time::Duration;

use crate::backend::{Capabilities, MIN_TTL, Mode, TokenTier};
use crate::error::LockError;
use crate::key::LockKey;
use crate::limits;
use crate::options::Options;

/// Refuses tokens that are not strict, and says what to do about it.
pub(crate) fn check_fenced(
    capabilities: &Capabilities,
    subject: impl FnOnce() -> String,
) -> Result<(), LockError> {
    let tokens = match capabilities.tokens {
        TokenTier::Strict => return Ok(()),
        TokenTier::BestEffort => "best effort",
        TokenTier::None => "missing",
    };
    let remedy = match capabilities.strict_with {
        "" => or_another_store(""),
        settings => or_another_store(&format!("set {settings}")),
    };
    let store = capabilities.name;
    Err(LockError::Unsupported {
        subject: subject(),
        reason: format!(
            "`fenced` needs tokens that never go back, and those of this {store} store are \
             {tokens}; {remedy}"
        ),
    })
}

/// Refuses an impossible number of permits, and several permits with `fenced`: the holders work
/// side by side, so a token does not show which of them came last.
pub(crate) fn check_permits(options: &Options, fenced: bool) -> Result<(), LockError> {
    let reason = match options.mode {
        _ if options.two_modes => "`read` and `permits` exclude each other; keep one".to_owned(),
        Mode::Permits(0) => "this number is not possible; give a whole number from 1 to \
                             4294967295"
            .to_owned(),
        Mode::Permits(most @ 2..) if fenced || options.fenced => format!(
            "with {most} at once, tokens tell nobody who came last, as `fenced` promises; leave \
             one of the two out"
        ),
        _ => return Ok(()),
    };
    Err(LockError::config("permits", reason))
}

/// Refuses `once` where a mark cannot be kept: a mark needs one key and an exclusive lock. A
/// re-entered lock is checked too, since the inner body is the one that is remembered.
pub(crate) fn check_once(
    options: &Options,
    key: &LockKey,
    capabilities: &Capabilities,
) -> Result<(), LockError> {
    let Some(remembered) = options.once else {
        return Ok(());
    };
    let refuse = |reason: &str| Err(LockError::config("once", reason));
    match options.mode {
        Mode::Read => return refuse("readers run beside each other; leave `read` or `once` out"),
        Mode::Permits(_) => {
            return refuse("permits let several run at once; leave `permits` or `once` out");
        }
        Mode::Write => {}
    }
    if key.single().is_none() {
        return refuse("it remembers one key, and there are several; give one, or leave it out");
    }
    limits::ONCE.check(remembered)?;
    check_remembers(capabilities, || format!("lock `{key}`"))?;
    check_longest("once", remembered, capabilities)
}

/// Refuses a store that cannot remember what was done.
pub(crate) fn check_remembers(
    capabilities: &Capabilities,
    subject: impl FnOnce() -> String,
) -> Result<(), LockError> {
    if capabilities.once {
        return Ok(());
    }
    let store = capabilities.name;
    let remedy = or_another_store(capabilities.once_with);
    Err(LockError::Unsupported {
        subject: subject(),
        reason: format!(
            "the {store} store cannot remember what was done, as `once` asks; {remedy}"
        ),
    })
}

/// Refuses a shared mode that the store does not support.
pub(crate) fn check_shared(
    mode: Mode,
    capabilities: &Capabilities,
    subject: impl FnOnce() -> String,
) -> Result<(), LockError> {
    let (what, remedy) = match mode {
        Mode::Read if !capabilities.read_write => {
            let with = match capabilities.read_write_with {
                "" => String::new(),
                settings => format!(", or {settings}"),
            };
            ("read locks", format!("use mode \"write\"{with}"))
        }
        Mode::Permits(_) if !capabilities.permits => {
            ("permits", or_another_store(capabilities.permits_with))
        }
        _ => return Ok(()),
    };
    let store = capabilities.name;
    Err(LockError::Unsupported {
        subject: subject(),
        reason: format!("the {store} store has no {what}; {remedy}"),
    })
}

/// The advice for a missing feature: the settings that the store names, or another store.
fn or_another_store(settings: &str) -> String {
    match settings {
        "" => "use another store".to_owned(),
        settings => format!("{settings}, or use another store"),
    }
}

/// Refuses a ttl that the store cannot keep.
pub(crate) fn check_ttl(ttl: Duration, capabilities: &Capabilities) -> Result<(), LockError> {
    limits::TTL.check(ttl)?;
    let store = capabilities.name;
    let least = capabilities.min_ttl.max(MIN_TTL);
    if ttl < least {
        let rounds = match capabilities.ttl_step {
            Duration::ZERO => String::new(),
            step => format!(", and rounds up to whole steps of {step:?}"),
        };
        return Err(LockError::config(
            "ttl",
            format!("{ttl:?} is too short; the {store} store needs at least {least:?}{rounds}"),
        ));
    }
    check_longest("ttl", ttl, capabilities)
}

/// Refuses to keep a lock for longer than the store can.
pub(crate) fn check_longest(
    setting: &str,
    time: Duration,
    capabilities: &Capabilities,
) -> Result<(), LockError> {
    let (store, most) = (capabilities.name, capabilities.max_ttl);
    if time <= most {
        return Ok(());
    }
    const DAY: u64 = 24 * 60 * 60;
    let days = most.as_secs().div_ceil(DAY);
    let limit = match Duration::from_secs(days * DAY) == most {
        true => "at most",
        false => "less than",
    };
    Err(LockError::config(
        setting,
        format!(
            "{time:?} is too long; the {store} store keeps a lock for {limit} {days} days; give a \
             shorter time"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_store_goes_below_what_the_attribute_allows() {
        let shorter = MIN_TTL - Duration::from_millis(1);
        for least in [Duration::ZERO, MIN_TTL] {
            let mut store = Capabilities::new("any");
            store.min_ttl = least;
            let error = check_ttl(shorter, &store).expect_err("too short");
            assert!(error.to_string().contains("10ms"), "{error}");
            assert!(check_ttl(MIN_TTL, &store).is_ok());
        }
    }
}
