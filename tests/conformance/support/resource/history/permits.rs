//! Bodies that share a lock which only so many may have at once. They do nothing but come and go.

use std::time::Instant;

use super::{Entry, History, Open, What};

impl History {
    /// The number with which it leaves again.
    pub(super) fn comes_in(
        &mut self,
        worker: &str,
        token: u64,
        entry: Entry,
        permits: usize,
    ) -> u64 {
        let token = if token == 0 { self.last + 1 } else { token };
        self.last = self.last.max(token);
        let now = Instant::now();
        let is_late = self.may_be_late(worker, entry.asked);
        let counts = |open: &&Open| open.may_end.is_none_or(|end| now < end);
        let inside: Vec<_> = self.open.iter().filter(counts).cloned().collect();
        if inside.len() >= permits && !is_late {
            let inside: Vec<_> = inside.iter().map(|open| open.token).collect();
            let what = format!(
                "{worker} (token {token}) came in with one of {permits} permits, beside {inside:?}"
            );
            self.overtaken.extend(&inside);
            self.note(worker, token, What::Overtook(inside, what));
        }
        let stop = self.stopped.get(worker).map(|stop| stop.leases_end);
        self.open.push(Open {
            worker: worker.to_owned(),
            token,
            entry,
            may_end: if is_late { Some(now) } else { stop },
        });
        self.most_readers = self.most_readers.max(self.open.len());
        self.entries += 1;
        self.note(worker, token, What::Entered);
        token
    }
}
