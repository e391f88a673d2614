//! Who holds a lock and who waits, as somebody reads it who has nothing but SQL.

use dlock_conformance::{config, connect};

use super::Tables;
use crate::support::locks::{held, queued, served, shown};

/// Host, process and label stand behind the owner, wherever it is written.
pub(crate) async fn who_holds_it_and_who_waits_is_read_by_sql<S: Tables>(store: &mut S) {
    let (orders, invoices) = (
        connect(config(store).label("orders")).await,
        connect(config(store).label("invoices")).await,
    );
    let written = held(orders.lock("written")).await;
    let read = held(orders.lock("read").read()).await;
    let waiting = tokio::spawn(invoices.lock("written").acquire());
    queued(&orders, "written", 1).await;
    let holder = shown(&invoices, "written").await.holders.remove(0);
    let host = holder.process.expect("the process").host;
    let signature = |label| format!("@{host},{},{label},", std::process::id());
    for (query, label) in [
        ("SELECT * FROM dlock_lock WHERE name = 'written'", "orders"),
        ("SELECT * FROM dlock_lock WHERE name = 'read'", "orders"),
        ("SELECT * FROM dlock_reader", "orders"),
        ("SELECT * FROM dlock_queue", "invoices"),
    ] {
        let rows = store.rows(query).await;
        let [row] = &rows[..] else {
            panic!("one row of {query}: {rows:?}");
        };
        let signature = signature(label);
        let is_shown = row.iter().any(|column| column.contains(&signature));
        assert!(is_shown, "{query}: {signature} is not in {row:?}");
    }
    for guard in [written, read] {
        guard.release().await.expect("the release");
    }
    drop(served(waiting).await);
}
