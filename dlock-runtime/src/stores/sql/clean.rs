//! Removes what nobody needs any more, while there is something: one process for
//! all, as a rule.

use std::sync::Arc;

use super::database::Database;
use super::rows::Column;
use super::script::{Args, CLEANED_EVERY};
use super::tables::Tables;
use crate::store::{Cause, Failure};

/// Begins when a lock is asked for, and goes on while the tables hold something.
pub(super) async fn keep_clean<D: Database>(tables: Arc<Tables<D>>) {
    loop {
        tables.used.notified().await;
        while !tables.pooled.rests() && hold_something(&tables).await {
            let pause = CLEANED_EVERY.mul_f64(1.0 + fastrand::f64() / 2.0);
            tables.time.sleep(tables.time.after(pause)).await;
        }
    }
}

async fn hold_something<D: Database>(tables: &Arc<Tables<D>>) -> bool {
    let scripts = &tables.scripts;
    let script = scripts.fill(&scripts.is_clean, &Args::default());
    let columns = &[Column::Int, Column::Int];
    let Ok(state) = tables.run(script, columns, tables.deadline()).await else {
        return true;
    };
    let Some(state) = state.rows.first() else {
        return true;
    };
    if state.int(0) == 1
        && let Err(failure) = clean(tables).await
        && let Cause::Error(error) | Cause::NotReached(error) = failure.cause
    {
        tracing::debug!(target: "dlock::store", "dlock cannot clean its tables: {error}");
    }
    state.int(1) > 0
}

async fn clean<D: Database>(tables: &Arc<Tables<D>>) -> Result<(), Failure> {
    let scripts = &tables.scripts;
    let script = scripts.fill(&scripts.clean, &Args::default());
    let waited = tables
        .run(script, &[Column::Text], tables.deadline())
        .await?;
    for row in &waited.rows {
        // Perhaps the dead alone wait for it.
        let args = Args {
            key: row.text(0),
            ..tables.args()
        };
        let script = scripts.fill(&scripts.give_up, &args);
        tables.run(script, &[], tables.deadline()).await?;
    }
    Ok(())
}
