//! Limits the log lines about refused requests.

use std::time::Duration;

use tokio::time::Instant;

use crate::sync::Mutex;

/// The least time between two lines: in an outage every request is refused for the same reason.
const PAUSE: Duration = Duration::from_secs(5);

/// Lets a line through once in a while, and counts those left out.
pub(super) struct Limited(Mutex<Option<Line>>);

struct Line {
    at: Instant,
    /// Number of lines left out since then.
    untold: u64,
}

impl Limited {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether to log this one, and then how many were left out since the last, and how long ago
    /// that was.
    pub(super) fn one_more(&self) -> Option<(u64, Duration)> {
        let now = Instant::now();
        let mut last = self.0.lock();
        match &mut *last {
            Some(line) if now < line.at + PAUSE => {
                line.untold += 1;
                None
            }
            line => {
                let next = Line { at: now, untold: 0 };
                let before = line.replace(next);
                let told = before.map(|before| (before.untold, now - before.at));
                Some(told.unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_are_few_lines_and_none_is_left_uncounted() {
        let limited = Limited::new();
        assert_eq!(limited.one_more(), Some((0, Duration::ZERO)));
        for untold in [99, 0, 7] {
            for _ in 0..untold {
                assert_eq!(limited.one_more(), None);
            }
            // However late the next comes.
            tokio::time::advance(2 * PAUSE).await;
            assert_eq!(limited.one_more(), Some((untold, 2 * PAUSE)));
        }
    }
}
