//! How one history ended, and what is told of one that failed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::history::Outcomes;

#[derive(Debug)]
pub(crate) enum Ended {
    Judged(Outcomes),
    /// Something was that must not be.
    Failed(String),
    /// The servers did not serve, or not together: there was nothing to judge.
    DidNotStart(String),
}

impl Ended {
    /// What failed, under the command that runs it again.
    pub(crate) fn failure(&self, store: &str, seed: u64) -> Option<String> {
        let (begin, why) = match self {
            Self::Judged(_) => return None,
            Self::Failed(why) => ("seed", why),
            Self::DidNotStart(why) => ("did not start, seed", why),
        };
        // Built as this program is.
        let release = if cfg!(debug_assertions) {
            ""
        } else {
            "--release "
        };
        let mut told = format!(
            "\n{begin} {seed}: cargo run {release}-p dlock-histories -- --store {store} --seed {seed}\n"
        );
        why.lines().take(12).for_each(|line| {
            told += "  ";
            told += line;
            told.push('\n');
        });
        Some(told)
    }

    /// What the program ends with, if that was to be `code` before this one.
    pub(crate) fn code_after(&self, code: u8) -> u8 {
        match (self, code) {
            (Self::Failed(_), _) | (_, 1) => 1,
            (Self::DidNotStart(_), _) => 3,
            (Self::Judged(_), code) => code,
        }
    }
}

/// What this has returned, or what it has panicked with.
pub(crate) fn attempted<T>(attempt: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(attempt)).map_err(|panic| said(&*panic))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "a panic without words".to_owned())
}
