//! Checks a request before the store is asked: whether its key can name a lock, and whether the
//! store can provide a lock with its options.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::backend::{Capabilities, MIN_TTL, Mode, TokenTier};
use crate::error::LockError;
use crate::key::{LockKey, MAX_KEY_BYTES, Shown, UNSHOWN};
use crate::limits;
use crate::options::{Options, Shapes};

/// Refuses a key with a name that no store could keep apart or show.
pub(crate) fn check_key(key: &LockKey, namespace: &str, max_bytes: usize) -> Result<(), LockError> {
    for name in key.names() {
        if name.is_empty() {
            return Err(LockError::InvalidKey {
                key: String::new(),
                reason: "it is empty; give the lock a name".to_owned(),
            });
        }
        check_prefix(name, namespace, max_bytes)?;
    }
    Ok(())
}

/// Refuses a constant that reads as a template over the arguments of the function: it is plain
/// text, and would be the same lock for all of them.
pub(crate) fn check_constants(key: &LockKey, shapes: Shapes) -> Result<(), LockError> {
    let Shapes::Known(parts) = shapes else {
        return Ok(());
    };
    for (index, name) in key.names().enumerate() {
        // One constant may make several names.
        let Some(part) = parts.get(index).or(parts.last()) else {
            continue;
        };
        for argument in part.arguments {
            let Some(value) = value_over(argument, name) else {
                continue;
            };
            let meant = match value.strip_prefix('{') {
                // Without the format spec, which a template does not have.
                Some(inside) => {
                    let inside = inside.split([':', '}']).next().unwrap_or(inside);
                    format!("<{}>", inside.trim())
                }
                None => value.to_owned(),
            };
            let (value, meant) = (Shown(value), Shown(&meant));
            return Err(LockError::InvalidKey {
                key: Shown(name).to_string(),
                reason: format!(
                    "it contains `{value}` as text, and is the same for every `{argument}`, since \
                     only a literal in the attribute is a template; write `key = \"…{meant}…\"` \
                     there, or `key = String::from(…)` around the constant if this very text is \
                     meant"
                ),
            });
        }
    }
    Ok(())
}

/// The part of the name that looks like a value of a template or of a format string over this
/// argument: `<id>`, `<id.as_str()>` or `{id:?}` for `id`.
fn value_over<'a>(argument: &str, name: &'a str) -> Option<&'a str> {
    name.match_indices(['<', '{']).find_map(|(at, bracket)| {
        let closing = if bracket == "<" { '>' } else { '}' };
        let behind = name[at + 1..].strip_prefix(argument)?;
        let is_longer = behind.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        let value = name[at..].split_inclusive(closing).next()?;
        (!is_longer && value.ends_with(closing)).then_some(value)
    })
}

/// Refuses text that no name begins with.
pub(crate) fn check_prefix(text: &str, namespace: &str, max_bytes: usize) -> Result<(), LockError> {
    let length = namespaced_length(namespace, text);
    let most = max_bytes.min(MAX_KEY_BYTES);
    // A text that is too long is not searched for control characters.
    let reason = if length > most {
        format!(
            "it is {length} bytes long with its namespace, and at most {most} are allowed; use a \
             shorter name or a hash of the long part"
        )
    } else if text.contains(UNSHOWN) {
        "a value of it could not be shown, as its `Display` failed; write a value that can be shown"
            .to_owned()
    } else if let Some(control) = text.chars().find(|c| c.is_control()) {
        format!("it holds the control character {control:?}; leave it out or encode it")
    } else {
        return Ok(());
    };
    Err(LockError::InvalidKey {
        key: Shown(text).to_string(),
        reason,
    })
}

fn namespaced_length(namespace: &str, name: &str) -> usize {
    match namespace.len() {
        0 => name.len(),
        length => length + 1 + name.len(),
    }
}

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

/// Warns once about a ttl that leaves no time for a second and a third attempt to renew: one
/// attempt without an answer may take a whole request timeout.
#[derive(Debug)]
pub(crate) struct ShortTtl {
    /// `None` for a store that always answers.
    request_timeout: Option<Duration>,
    /// The ttl of locks that give none. It has a warning of its own, so that a warning about
    /// another ttl is still printed.
    default: Duration,
    has_warned: AtomicBool,
}

impl ShortTtl {
    pub(crate) fn new(request_timeout: Option<Duration>, default: Duration) -> Self {
        Self {
            request_timeout,
            default,
            has_warned: AtomicBool::new(false),
        }
    }

    /// Checks the default ttl.
    pub(crate) fn look_at_default(&self) {
        self.tell(self.default, "all", || true);
    }

    /// Checks the ttl of the locks of this template.
    pub(crate) fn look(&self, ttl: Duration, template: &str) {
        if ttl != self.default {
            self.tell(ttl, template, || {
                !self.has_warned.swap(true, Ordering::Relaxed)
            });
        }
    }

    fn tell(&self, ttl: Duration, template: &str, is_first: impl FnOnce() -> bool) {
        let Some(timeout) = self.request_timeout else {
            return;
        };
        let least = timeout.saturating_mul(3);
        if ttl >= least || !is_first() {
            return;
        }
        tracing::warn!(
            target: "dlock",
            template,
            "a ttl of {ttl:?} is shorter than three request timeouts of {timeout:?}: a short \
             outage may end the lease; give a ttl of {least:?}, or lower the request timeout \
             (DLOCK_REQUEST_TIMEOUT). This is told once"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;
    use crate::key::KeyTemplate;
    use crate::options::Part;

    #[test]
    fn bad_keys_say_what_to_do() {
        let reason = |key: LockKey| match check_key(&key, "", MAX_KEY_BYTES) {
            Err(LockError::InvalidKey { reason, .. }) => reason,
            other => panic!("expected InvalidKey, got {other:?}"),
        };
        assert!(reason("".into()).contains("empty"));
        assert!(reason(Vec::<String>::new().into()).contains("empty"));
        assert!(reason("a\nb".into()).contains("control"));
        assert!(reason("\n".repeat(1 << 20).into()).contains("bytes"));
        assert!(reason("x".repeat(513).into()).contains("513 bytes"));
        let unshown = KeyTemplate::new("a:").value(&Fails, ":b", true).finish();
        assert!(reason(unshown.into()).contains("could not be shown"));
        let unshown = KeyTemplate::new("").value(&Fails, "", true).finish();
        assert!(reason(unshown.into()).contains("could not be shown"));
        let longest = LockKey::from("x".repeat(512));
        assert!(check_key(&longest, "", MAX_KEY_BYTES).is_ok());
        assert!(check_key(&longest, "ns", MAX_KEY_BYTES).is_err());
    }

    struct Fails;

    impl fmt::Display for Fails {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a")?;
            Err(fmt::Error)
        }
    }

    #[test]
    fn a_constant_that_reads_as_a_template_is_refused() {
        const ARGUMENTS: &[&str] = &["day", "self"];
        const PARTS: &[Part] = &[part(&[]), part(ARGUMENTS)];
        let refused = |names: &[&str]| check_constants(&names.into(), Shapes::Known(PARTS)).err();
        for (text, value, meant) in [
            ("a:<day>", "<day>", "<day>"),
            ("<day.name()>:b", "<day.name()>", "<day.name()>"),
            ("<days>:<self.day>", "<self.day>", "<self.day>"),
            ("a:{day}", "{day}", "<day>"),
            ("{{day}}", "{day}", "<day>"),
            ("{days}:{self.day:?}", "{self.day:?}", "<self.day>"),
        ] {
            let error = refused(&["a", text]).expect(text).to_string();
            assert!(error.contains(&format!("contains `{value}`")), "{error}");
            let instead = format!("write `key = \"…{meant}…\"`");
            assert!(error.contains(&instead), "{error}");
            assert!(refused(&["a", "b", text]).is_some(), "{text}");
            assert!(refused(&[text, "a"]).is_none(), "{text}");
            assert!(check_constants(&text.into(), Shapes::Keys).is_ok());
        }
        for text in [
            "a",
            "<days>",
            "<day",
            "day>",
            "<today>",
            "{days}",
            "{day",
            "day}",
            "{week}:day",
            "",
        ] {
            assert!(refused(&["a", text]).is_none(), "{text}");
        }
    }

    const fn part(arguments: &'static [&'static str]) -> Part {
        Part {
            template: "a",
            shape: "",
            arguments,
        }
    }

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
