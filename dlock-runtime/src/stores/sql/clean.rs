//! Removes rows that nobody needs any more. Usually one process does this for all.

use std::sync::Arc;

use super::database::Database;
use super::script::CLEANED_EVERY;
use super::tables::Tables;
use super::work::Args;

/// Begins when a lock is asked for, and goes on while the tables hold rows.
pub(super) async fn keep_clean<D: Database>(tables: Arc<Tables<D>>) {
    loop {
        tables.used.notified().await;
        while !tables.connections.rests() && hold_something(&tables).await {
            let pause = CLEANED_EVERY.mul_f64(1.0 + tables.time.draw() / 2.0);
            tables.time.sleep(tables.time.after(pause)).await;
        }
    }
}

async fn hold_something<D: Database>(tables: &Arc<Tables<D>>) -> bool {
    let state = tables.look_after("is_clean", Args::default(), 2).await;
    let Some(state) = state.as_ref().and_then(|answer| answer.rows.first()) else {
        return true;
    };
    if state.int(0) == 1 {
        let waited = tables.look_after("clean", Args::default(), 1).await;
        for row in waited.iter().flat_map(|answer| &answer.rows) {
            // Perhaps only dead waiters are left.
            tables.give_up(Args::of_key(row.text(0))).await;
        }
    }
    state.int(1) == 1
}

impl<D: Database> Tables<D> {
    /// Removes the place of an owner from a queue, or those of dead waiters. Returns whether the
    /// database has answered.
    pub(super) async fn give_up(self: &Arc<Self>, place: Args<'_>) -> bool {
        self.look_after("give_up", place, 0).await.is_some()
    }
}
