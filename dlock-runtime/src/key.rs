//! The names of locks: keys, how they are shown, and the escaping that keeps different arguments of
//! a template from making the same key.

use std::fmt::{self, Write as _};
use std::sync::Arc;

/// The longest key in bytes, including its namespace.
pub const MAX_KEY_BYTES: usize = 512;

/// The name of a lock, or of several locks that are taken as one.
///
/// Made from a string or from a list of strings. Nothing is checked until the key is used: an empty
/// key, one longer than [`MAX_KEY_BYTES`] or one with a control character then gives
/// [`LockError::InvalidKey`](crate::LockError::InvalidKey).
///
/// `Display` and `Debug` are for people and logs: unprintable characters and backslashes are
/// escaped, and only the beginning and the end of a long name are shown. [`names`](Self::names)
/// gives the names as they are.
///
/// ```
/// # use dlock_runtime as dlock;
/// use dlock::LockKey;
///
/// let one = LockKey::from("stock:42");
/// let both = LockKey::from(["account:7", "account:3"]);
/// assert_eq!(one.to_string(), "stock:42");
/// assert_eq!(both.to_string(), "account:7 + account:3");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LockKey {
    first: Arc<str>,
    rest: Vec<Arc<str>>,
}

impl LockKey {
    /// The names, in the order in which they were written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.first).chain(self.rest.iter().map(|name| &**name))
    }

    /// The first name as written.
    #[must_use]
    pub fn first(&self) -> &str {
        &self.first
    }

    /// A key of several names. An empty list gives the empty key, which is refused when it is used.
    fn from_names(names: impl IntoIterator<Item = Arc<str>>) -> Self {
        let mut names = names.into_iter();
        Self {
            first: names.next().unwrap_or_else(|| Arc::from("")),
            rest: names.collect(),
        }
    }

    /// The names in the order written, without duplicates.
    pub(crate) fn distinct(&self) -> Vec<Arc<str>> {
        let mut distinct = Vec::with_capacity(1 + self.rest.len());
        distinct.push(Arc::clone(&self.first));
        for name in &self.rest {
            if !distinct.contains(name) {
                distinct.push(Arc::clone(name));
            }
        }
        distinct
    }

    /// The name of a key that names one lock only.
    pub(crate) fn single(&self) -> Option<&Arc<str>> {
        self.rest.is_empty().then_some(&self.first)
    }
}

/// The name that the store sees: the namespace, a colon, and the name.
pub(crate) fn namespaced(namespace: &str, name: &Arc<str>) -> Arc<str> {
    if namespace.is_empty() {
        Arc::clone(name)
    } else {
        Arc::from(format!("{namespace}:{name}"))
    }
}

/// A name or a prefix of names as every message, span, event and `Debug` shows it: on one line,
/// whatever it contains, and short enough for a log line. Refused names, which may come from
/// anywhere, are shown like this too.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

/// A longer name is shown without its middle.
const LONGEST_SHOWN: usize = 128;
/// The parts that are shown of such a name, in characters. Names usually differ at their end.
const BEGINNING: usize = 95;
const END: usize = 32;

/// How many names of one key are shown.
const NAMES_SHOWN: usize = 8;

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        if name.len() <= LONGEST_SHOWN || name.chars().nth(LONGEST_SHOWN).is_none() {
            return escape(name, f);
        }
        let index = |found: Option<(usize, char)>| found.map_or(name.len(), |(index, _)| index);
        escape(&name[..index(name.char_indices().nth(BEGINNING))], f)?;
        f.write_str("…")?;
        escape(&name[index(name.char_indices().nth_back(END - 1))..], f)
    }
}

/// Escapes as `Debug` does, but leaves quotes as they are, since the text is not put in quotes.
pub(crate) fn escape(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for part in text.split_inclusive(['"', '\'']) {
        let (part, quote) = match part.strip_suffix(['"', '\'']) {
            Some(before) => (before, &part[before.len()..]),
            None => (part, ""),
        };
        write!(f, "{}", part.escape_debug())?;
        f.write_str(quote)?;
    }
    Ok(())
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names().take(NAMES_SHOWN).enumerate() {
            if index > 0 {
                f.write_str(" + ")?;
            }
            Shown(name).fmt(f)?;
        }
        match self.names().count().saturating_sub(NAMES_SHOWN) {
            0 => Ok(()),
            more => write!(f, " + {more} more"),
        }
    }
}

/// Whether the key is this one name.
impl PartialEq<str> for LockKey {
    fn eq(&self, name: &str) -> bool {
        self.single().is_some_and(|single| **single == *name)
    }
}

impl PartialEq<&str> for LockKey {
    fn eq(&self, name: &&str) -> bool {
        *self == **name
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockKey({self})")
    }
}

impl From<&LockKey> for LockKey {
    fn from(key: &LockKey) -> Self {
        key.clone()
    }
}

macro_rules! key_from_one {
    ($($from:ty),*) => {$(
        impl From<$from> for LockKey {
            fn from(name: $from) -> Self {
                Self { first: Arc::from(name), rest: Vec::new() }
            }
        }
    )*};
}
key_from_one!(&str, String, Arc<str>, Box<str>);

impl From<&String> for LockKey {
    fn from(name: &String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<std::borrow::Cow<'_, str>> for LockKey {
    fn from(name: std::borrow::Cow<'_, str>) -> Self {
        Self::from(&*name)
    }
}

impl<K: Into<Arc<str>>> From<Vec<K>> for LockKey {
    fn from(names: Vec<K>) -> Self {
        Self::from_names(names.into_iter().map(Into::into))
    }
}

impl<K: Clone + Into<Arc<str>>> From<&Vec<K>> for LockKey {
    fn from(names: &Vec<K>) -> Self {
        Self::from(names.as_slice())
    }
}

impl<K: Into<Arc<str>>, const N: usize> From<[K; N]> for LockKey {
    fn from(names: [K; N]) -> Self {
        Self::from_names(names.into_iter().map(Into::into))
    }
}

impl<K: Clone + Into<Arc<str>>> From<&[K]> for LockKey {
    fn from(names: &[K]) -> Self {
        Self::from_names(names.iter().cloned().map(Into::into))
    }
}

/// Stands in a name for a value that could not be shown. No name with it is taken: it has a control
/// character.
pub(crate) const UNSHOWN: &str = "\0<not shown>";

/// Builds a key from the literals and values of a template.
///
/// The result is injective: two different lists of values never make the same key. In a value, `%`
/// becomes `%25`. The first character of the literal after the value is encoded in the same way, so
/// that a reader of the key knows where the value ends. `:` is always encoded, since people expect
/// this separator to be safe. A value that is followed by another value, or by a literal `%`, has
/// no such character: a `%` that no encoded value can contain separates them.
#[doc(hidden)]
#[derive(Debug)]
pub struct KeyTemplate {
    key: String,
}

/// A value in a template: `Display`, with its own compile error where that is missing.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a key: it does not implement `Display`",
    label = "it holds a `{Self}`",
    note = "a key has its values as `Display` shows them: name what can be shown, such as \
            `<order.id>`, or implement `Display`; of an `Option`, say what stands for `None`, \
            such as `<size.unwrap_or(0)>`"
)]
pub trait KeyPart {
    /// The value that is displayed.
    fn shown(&self) -> impl fmt::Display;
}

#[diagnostic::do_not_recommend]
impl<T: fmt::Display + ?Sized> KeyPart for T {
    fn shown(&self) -> impl fmt::Display {
        self
    }
}

impl KeyTemplate {
    /// Starts a key with the literal text before its first value.
    #[must_use]
    pub fn new(literal: &str) -> Self {
        let mut key = String::with_capacity(literal.len() + 32);
        key.push_str(literal);
        Self { key }
    }

    /// Adds a value and the literal text after it, up to the next value. `last` says that no other
    /// value follows.
    #[must_use]
    pub fn value(mut self, value: &(impl KeyPart + ?Sized), literal: &str, last: bool) -> Self {
        let stop = literal.chars().next();
        let mut escape = Escape {
            key: &mut self.key,
            stop,
        };
        // A `Display` that fails may have written the same for every value. `to_string` would
        // panic, which this must not add.
        if write!(escape, "{}", value.shown()).is_err() {
            self.key.push_str(UNSHOWN);
        }
        match stop {
            None if last => {}
            None => self.key.push_str("%,"),
            Some('%') => self.key.push('%'),
            Some(_) => {}
        }
        self.key.push_str(literal);
        self
    }

    /// The finished name.
    #[must_use]
    pub fn finish(self) -> String {
        self.key
    }
}

struct Escape<'a> {
    key: &'a mut String,
    stop: Option<char>,
}

impl fmt::Write for Escape<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if character == '%' || character == ':' || Some(character) == self.stop {
                let mut bytes = [0; 4];
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    write!(self.key, "%{byte:02X}")?;
                }
            } else {
                self.key.push(character);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "../tests/properties/key.rs"]
mod properties;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Every pair of short values over an alphabet of difficult characters makes a different key,
    /// whatever stands between them.
    #[test]
    fn templates_are_injective() {
        let alphabet = ["", "%", ":", "a", "2", "5", "é", ",", "-", "C"];
        let mut values = Vec::new();
        for a in alphabet {
            for b in alphabet {
                values.push(format!("{a}{b}"));
            }
        }
        values.sort();
        values.dedup();
        for between in ["", ":", "%", "%2", "2", "a", "é", ",", "-b-", "C3"] {
            let mut seen = HashMap::new();
            for left in &values {
                for right in &values {
                    let key = KeyTemplate::new("k")
                        .value(left, between, false)
                        .value(right, "", true)
                        .finish();
                    if let Some(other) = seen.insert(key.clone(), (left, right)) {
                        panic!("{other:?} and {:?} both make {key}", (left, right));
                    }
                }
            }
        }
    }

    #[test]
    fn plain_values_stay_readable() {
        let key = KeyTemplate::new("stock:")
            .value("blue-mug", ":eu", true)
            .finish();
        assert_eq!(key, "stock:blue-mug:eu");
        let key = KeyTemplate::new("")
            .value("a:b", ":", false)
            .value("c", "", true)
            .finish();
        assert_eq!(key, "a%3Ab:c");
    }

    #[test]
    fn a_key_is_shown_on_one_short_line() {
        let shown = |name: &str| {
            let key = LockKey::from(name);
            assert_eq!(format!("{key:?}"), format!("LockKey({key})"));
            key.to_string()
        };
        for plain in [
            "stock:42",
            "a key",
            "ключ/鍵",
            "it's \"quoted\" `so`",
            "%2a:{}<>",
        ] {
            assert_eq!(shown(plain), plain);
        }
        assert_eq!(shown("a\nERROR b\r\t\0\u{7}"), r"a\nERROR b\r\t\0\u{7}");
        // Some readers end a line at these characters, and others reverse it.
        assert_eq!(
            shown("a\u{2028}b\u{202e}c\u{85}"),
            r"a\u{2028}b\u{202e}c\u{85}"
        );
        assert_eq!(shown("\u{1b}[31m"), r"\u{1b}[31m");
        // No name is shown as another one is.
        assert_eq!(shown(r"a\nb"), r"a\\nb");

        let whole = "é".repeat(LONGEST_SHOWN);
        assert_eq!(shown(&whole), whole);
        let long = format!("first{}last", "é".repeat(1 << 20));
        let short = shown(&long);
        assert_eq!(short.chars().count(), LONGEST_SHOWN);
        assert!(
            short.starts_with("firsté") && short.ends_with("élast"),
            "{short}"
        );

        let many = LockKey::from((0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(many.to_string(), "0 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 992 more");
        assert_eq!(LockKey::from("a\nb").first(), "a\nb");
    }
}
