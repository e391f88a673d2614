//! The cursor of a scan (`SCAN`) of one server.

/// How far the scan of a server has come.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    pub(super) at: u64,
    /// The one after the last number of steps that was a power of two.
    mark: u64,
    steps: u64,
}

impl Cursor {
    /// Goes on to the next one; 0 is the end. `false`: the server has gone round in a circle. No
    /// server does (`dictScan` in Redis's `dict.c` counts up), and it would be asked for ever. A
    /// circle of any length is found, by a mark that stays for twice as many steps each time
    /// (Brent's algorithm).
    pub(super) fn goes_on(&mut self, next: u64) -> bool {
        if next == 0 {
            *self = Self::default();
            return true;
        }
        if next == self.mark {
            return false;
        }
        self.at = next;
        self.steps += 1;
        if self.steps.is_power_of_two() {
            self.mark = next;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cursors, and whether the scan goes on to its end.
    fn scan(cursors: impl IntoIterator<Item = u64>) -> bool {
        let mut cursor = Cursor::default();
        cursors.into_iter().all(|next| cursor.goes_on(next))
    }

    #[test]
    fn a_scan_that_goes_round_is_seen() {
        // As a table of 2^16 entries is scanned, ten at a time, twice.
        let bits = |at: u16| u64::from(at.reverse_bits());
        let once = || (1..6_500).map(|step| bits(step * 10)).chain([0]);
        assert!(scan(once().chain(once())));
        for length in [1, 2, 3, 100, 1_000] {
            let circle = (1..=length).cycle().take(10_000);
            assert!(!scan((5_000..5_100).chain(circle)), "of {length}");
        }
    }
}
