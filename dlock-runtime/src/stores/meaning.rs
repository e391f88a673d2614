//! What an error of a server means. Every store has a table of that, and all tables have the same
//! shape.

use std::fmt::{self, Display};

use crate::backend::{BackendError, BackendErrorKind};
use crate::key::escape;

/// A row of such a table: which kind of error the caller gets, what dlock can do about it, and what
/// people can do.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "sqlx"),
    allow(unreachable_pub, reason = "for databases")
)]
pub struct Meaning<R> {
    pub(super) kind: BackendErrorKind,
    pub(super) retry: R,
    /// What people can do. Empty if there is no advice.
    pub(super) advice: &'static str,
    /// The user does not have the right that this needs.
    pub(super) denied: bool,
}

impl<R> Meaning<R> {
    /// Somebody has to change a setting.
    pub(super) fn config(advice: &'static str) -> Self
    where
        R: Default,
    {
        Self {
            kind: BackendErrorKind::Config,
            retry: R::default(),
            advice,
            denied: false,
        }
    }

    /// Somebody has to give the user a right.
    #[cfg(any(
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    ))]
    pub(super) fn denied(advice: &'static str) -> Self
    where
        R: Default,
    {
        Self {
            denied: true,
            ..Self::config(advice)
        }
    }

    pub(super) fn unavailable(retry: R, advice: &'static str) -> Self {
        Self {
            kind: BackendErrorKind::Unavailable,
            retry,
            advice,
            denied: false,
        }
    }

    /// The error for the caller. `place` is the server, and `said` is what it said.
    pub(super) fn error(&self, place: impl Display, said: impl Display) -> BackendError {
        let said = Said(&said.to_string()).to_string();
        let error = BackendError::new(
            self.kind,
            match self.advice {
                "" => format!("{place}: {said}"),
                advice => format!("{place}: {said}; {advice}"),
            },
        );
        match self.denied {
            true => error.denied(),
            false => error,
        }
    }
}

/// The error for something in one of dlock's own places that dlock did not write. Asking again does
/// not help: somebody has to remove it. `found` says what is there, and what to do.
pub(super) fn foreign(place: impl Display, found: impl Display) -> BackendError {
    BackendError::new(BackendErrorKind::Config, format!("{place}: {found}"))
}

/// What a server or its client said, as a message shows it: on one line, and only the beginning of
/// a long text. Nobody knows what such a text contains.
struct Said<'a>(&'a str);

/// The most bytes of it that are shown. What is escaped takes more than it did, and so do letters
/// of some languages.
const LONGEST_SAID: usize = 400;

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self
            .0
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        let line = lines.collect::<Vec<_>>().join(", ");
        let shown = Printable(&line).to_string();
        if shown.len() <= LONGEST_SAID {
            return f.write_str(&shown);
        }
        let fits = |end: &usize| shown.is_char_boundary(*end);
        let end = (0..=LONGEST_SAID).rev().find(fits).unwrap_or_default();
        write!(f, "{}…", &shown[..end])
    }
}

/// Text in which what would do something to a terminal or a log is escaped. Its own backslashes
/// stay as they are.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive('\\') {
            escape(part.trim_end_matches('\\'), f)?;
            f.write_str(if part.ends_with('\\') { "\\" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_one_short_line() {
        let told = |said: &str| {
            let meaning: Meaning<()> = Meaning::unavailable((), "see its log");
            meaning.error("a", said).to_string()
        };
        assert_eq!(told("no 'x' in C:\\y"), "a: no 'x' in C:\\y; see its log");
        assert_eq!(told(" one\n  two\r\n\n"), "a: one, two; see its log");
        assert_eq!(
            told("\u{1b}[31m\u{202e}x\0"),
            r"a: \u{1b}[31m\u{202e}x\0; see its log"
        );
        for long in ["é", "€", "\u{1b}", "a", "\n a"].map(|one| told(&one.repeat(1 << 20))) {
            let most = LONGEST_SAID + "a: …; see its log".len();
            assert!(long.ends_with("…; see its log"), "{long}");
            assert!((most - 8..=most).contains(&long.len()), "{long}");
        }
    }
}
