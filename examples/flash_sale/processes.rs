//! Several processes that share one sale: this program, started again.

use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::AnyError;
use crate::arguments::{Arguments, Store};
use crate::report::follow;
use crate::shop::{Shop, ShopError};

/// When no order is served for so long, the rest is given up: longer than a
/// dead process can hold a lock and than anybody waits for one.
const PATIENCE: Duration = Duration::from_secs(45);

/// Runs the sale to its end, whatever becomes of the processes, and returns
/// their ids.
pub(crate) async fn run(shop: &dyn Shop, arguments: &Arguments) -> Result<Vec<u32>, AnyError> {
    let mut children = (0..arguments.processes)
        .map(|number| start(arguments, number))
        .collect::<Result<Vec<_>, _>>()?;
    let pids: Vec<u32> = children.iter().filter_map(Child::id).collect();
    eprintln!(
        "{} processes sell; kill or pause one and see: {pids:?}",
        pids.len()
    );

    tokio::select! {
        followed = follow(shop, arguments.orders) => followed?,
        () = all_ended(&mut children) => {}
        stopped = standstill(shop) => stopped?,
    }
    // Each ends when it finds no more orders. One that does not, or is paused,
    // is killed when it is dropped.
    let _ = timeout(Duration::from_secs(5), all_ended(&mut children)).await;
    Ok(pids)
}

fn start(arguments: &Arguments, number: usize) -> Result<Child, AnyError> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--process", &number.to_string(), "--sale", &arguments.sale])
        .args(["--orders", &arguments.orders.to_string()])
        .args(["--tasks", &arguments.tasks.to_string()])
        .kill_on_drop(true);
    if !arguments.locked {
        command.arg("--without-lock");
    }
    if let Store::Redis(url) = &arguments.store {
        // Not as an argument: everybody may see those.
        command.env("DLOCK_URL", url);
    }
    Ok(command.spawn()?)
}

async fn all_ended(children: &mut [Child]) {
    for child in children {
        // Its orders show what it did; how it ended makes no difference.
        let _ = child.wait().await;
    }
}

/// Resolves when nothing has been booked for a long time.
async fn standstill(shop: &dyn Shop) -> Result<(), ShopError> {
    loop {
        let before = shop.booked().await?;
        sleep(PATIENCE).await;
        if shop.booked().await? == before {
            eprintln!("no order was served for {PATIENCE:?}; giving up the rest");
            return Ok(());
        }
    }
}
