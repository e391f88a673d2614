//! What an error of a server means: one shape of table for every store.

use std::fmt::{self, Display};

use crate::backend::{BackendError, BackendErrorKind};
use crate::key::escape;

/// A row of such a table: what it is to the caller, what dlock can do then, and what
/// somebody else can.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "sqlx"),
    allow(unreachable_pub, reason = "for databases")
)]
pub struct Meaning<R> {
    pub(super) kind: BackendErrorKind,
    pub(super) retry: R,
    /// Empty if there is none.
    pub(super) advice: &'static str,
    /// The user has not the right to it.
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

    /// The error, of a server that said so.
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

/// What a server or its client says, as a message shows it: on one line, and of what is
/// long the beginning. It comes from anywhere.
struct Said<'a>(&'a str);

/// So many characters of it are shown.
const LONGEST_SAID: usize = 400;

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.trim();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines.next().unwrap_or_default().to_owned();
        let line = lines.fold(line, |text, line| text + ", " + line);
        let end = line.char_indices().nth(LONGEST_SAID);
        let shown = end.map_or(&*line, |(end, _)| &line[..end]);
        // What does something to a terminal or a log. Backslashes are its own.
        for part in shown.split_inclusive('\\') {
            escape(part.trim_end_matches('\\'), f)?;
            f.write_str(if part.ends_with('\\') { "\\" } else { "" })?;
        }
        f.write_str(if end.is_some() { "…" } else { "" })
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
        let long = told(&"é".repeat(1 << 20));
        assert_eq!(
            long.chars().count(),
            LONGEST_SAID + "a: …; see its log".chars().count()
        );
    }
}
