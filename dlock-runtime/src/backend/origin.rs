//! Where a request comes from, in terms a person knows: host, process and label.
//!
//! The origin is written after the owner in the store, so that a person who looks there sees
//! which process holds a lock. It costs no extra command. It is text for people: no lock relies
//! on it.

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest host and the longest label that are written, in bytes.
pub(crate) const LONGEST_NAME: usize = 63;

/// The longest text of a [`Signature`].
pub(crate) const LONGEST_SIGNATURE: usize = LONGEST_NAME + 1 + 10 + 1 + LONGEST_NAME + 1 + 20;

/// The manager that asks: `<host>,<process>,<label>`.
///
/// It is copied with each owner. Therefore its text is leaked: it is kept for the life of the
/// process, once for all managers with the same label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(&'static str);

impl Origin {
    /// The origin of this process, with a label for which [`is_name`] is true.
    pub(crate) fn here(label: &str) -> Self {
        static KNOWN: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
        static HOST: OnceLock<String> = OnceLock::new();

        let host = HOST.get_or_init(|| written(&gethostname::gethostname().to_string_lossy()));
        let text = format!("{host},{},{label}", std::process::id());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        match known.get(&*text) {
            Some(text) => Self(text),
            None => {
                let text = String::leak(text);
                known.insert(text);
                Self(text)
            }
        }
    }

    pub(crate) fn text(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The name of the running program, with the characters replaced that cannot be written.
pub(crate) fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&path).file_name().unwrap_or_default();
    written(&name.to_string_lossy())
}

/// Whether the name can be part of a signature. It must contain neither the commas of a signature
/// nor any character that separates the owner from other data in one of the stores.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_written)
}

fn is_written(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// A name that was not chosen for dlock (a host, a program), with each character replaced that
/// cannot be written.
pub(crate) fn written(name: &str) -> String {
    let letters = name.chars().take(LONGEST_NAME).map(|letter| match letter {
        letter if letter.is_ascii() && is_written(letter as u8) => letter,
        _ => '-',
    });
    match letters.collect::<String>() {
        name if name.is_empty() => "-".to_owned(),
        name => name,
    }
}

/// The origin of a request and when it asked, by its own clock: `<origin>,<unix ms>`.
#[derive(Clone, Copy)]
pub(crate) struct Signature {
    pub(crate) origin: Origin,
    pub(crate) asked_ms: u64,
}

impl Signature {
    pub(crate) fn now(origin: Origin) -> Self {
        Self {
            origin,
            asked_ms: unix_ms(),
        }
    }
}

/// The time by this host's clock, in milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since_1970.map_or(0, |time| time.as_millis());
    u64::try_from(ms).unwrap_or(u64::MAX)
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.origin.0, self.asked_ms)
    }
}

/// Which process signed an owner, to tell processes apart where a mistake does no harm: two hosts
/// may have one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u64);

impl Process {
    /// The process that has signed this owner, as a store has it.
    pub(crate) fn of(owner: &str) -> Option<Self> {
        let (_, signature) = owner.split_once('@')?;
        let (origin, _) = signature.rsplit_once(',')?;
        Some(Self::named(origin))
    }

    fn named(origin: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        origin.hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl From<Origin> for Process {
    fn from(origin: Origin) -> Self {
        Self::named(origin.0)
    }
}

/// A signature, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signed<'a> {
    pub(crate) host: &'a str,
    pub(crate) pid: u32,
    pub(crate) label: &'a str,
    pub(crate) asked_at: SystemTime,
}

impl<'a> Signed<'a> {
    /// The signature of an owner as a store has it, if the owner has one.
    pub(crate) fn of(owner: &'a str) -> Option<Self> {
        let (_, signature) = owner.split_once('@')?;
        // A store may append something to the signature.
        let is_part = |byte| is_written(byte) || byte == b',';
        let end = signature.bytes().position(|byte| !is_part(byte));
        Self::read(signature.get(..end.unwrap_or(signature.len()))?)
    }

    fn read(signature: &'a str) -> Option<Self> {
        let mut parts = signature.split(',');
        let (host, pid, label) = (parts.next()?, parts.next()?, parts.next()?);
        let asked = parts.next()?;
        // A number after a dot is not the time: etcd uses it to tell a repeated request from the
        // one before.
        let (asked, behind) = asked.split_once('.').unwrap_or((asked, "0"));
        let asked = asked.parse().ok()?;
        let is_number = behind.parse::<u64>().is_ok();
        let is_all = parts.next().is_none() && is_number && is_name(host) && is_name(label);
        Some(Self {
            host,
            pid: pid.parse().ok().filter(|_| is_all)?,
            label,
            asked_at: UNIX_EPOCH.checked_add(Duration::from_millis(asked))?,
        })
    }
}

/// Whether this is the text that an owner of dlock has after the `@`.
pub(crate) fn is_signature(text: &str) -> bool {
    text.bytes().all(|byte| is_written(byte) || byte == b',') && Signed::read(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_read_back() {
        let signature = Signature::now(Origin::here("orders"));
        let text = signature.to_string();
        for owner in [
            format!("0a.1@{text}"),
            format!("0a.1@{text}/7"),
            format!("0a.1@{text}.2"),
        ] {
            let signed = Signed::of(&owner).expect("a signature");
            assert_eq!((signed.pid, signed.label), (std::process::id(), "orders"));
            let asked = UNIX_EPOCH + Duration::from_millis(signature.asked_ms);
            assert_eq!(signed.asked_at, asked);
        }
        for other in [
            "",
            "0a.1",
            "0a.1@",
            "0a.1@host",
            "0a.1@host,1,shop",
            "0a.1@host,x,shop,1",
            "0a.1@host,1,,1",
            "0a.1@host,1,shop,x",
            "0a.1@host,1,shop,1,2",
        ] {
            assert_eq!(Signed::of(other), None, "{other}");
        }
        let late = format!("0a.1@host,1,shop,{}", u64::MAX);
        assert_eq!(Signed::of(&late).map(|signed| signed.host), Some("host"));
    }

    #[test]
    fn one_text_is_kept_of_a_label() {
        let [one, same, other] = ["a", "a", "b"].map(Origin::here);
        assert!(std::ptr::eq(one.0, same.0));
        assert!(one == same && one != other);
    }

    #[test]
    fn names_are_made_writable() {
        let long = "a".repeat(100);
        for (name, as_written) in [
            ("web-3.example", "web-3.example"),
            ("a b,c:d", "a-b-c-d"),
            ("ünï", "-n-"),
            ("", "-"),
            (&*long, &long[..LONGEST_NAME]),
        ] {
            assert_eq!(written(name), as_written);
            assert!(is_name(&written(name)));
        }
        for refused in ["", "a b", "a,b", "a@b", "ü", &long] {
            assert!(!is_name(refused), "{refused}");
        }
        assert!(is_name(&program()));
    }
}
