//! What is told at the end.

use std::io::Write as _;

use crate::arguments::{Arguments, How};

/// How the transfers ended.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) done: u64,
    /// There was not enough money.
    pub(crate) poor: u64,
    /// The lock was not had in time.
    pub(crate) timeouts: u64,
    /// The lock was lost on the way.
    pub(crate) lost: u64,
    /// The bank has refused a token that was not the newest.
    pub(crate) stale: u64,
    /// The bank or the lock's store has not answered.
    pub(crate) unclear: u64,
}

impl Report {
    pub(crate) fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.poor += other.poor;
        self.timeouts += other.timeouts;
        self.lost += other.lost;
        self.stale += other.stale;
        self.unclear += other.unclear;
    }

    pub(crate) fn print(&self, arguments: &Arguments, before: i64, after: i64) {
        let how = match arguments.how {
            How::Together => "both locks at once",
            How::OneByOne => "one lock after the other",
            How::Unprotected => "no locks",
        };
        let verdict = match after - before {
            0 => "it adds up".to_owned(),
            more @ 1.. => format!("{more} out of nowhere"),
            less => format!("{} lost", -less),
        };
        let lines = [
            format!(
                "transfers, with {how}, between {} accounts:",
                arguments.accounts
            ),
            format!("  done                 {}", self.done),
            format!("  not enough money     {}", self.poor),
            format!("  stuck, gave up       {}", self.timeouts),
            format!("  lost the lock        {}", self.lost),
            format!("  refused by the bank  {}", self.stale),
            format!("  no answer            {}", self.unclear),
            format!("  money before         {before}"),
            format!("  money after          {after}: {verdict}"),
        ];
        // Whoever reads it may have had enough.
        let _ = writeln!(std::io::stdout(), "{}", lines.join("\n"));
    }
}
