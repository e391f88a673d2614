//! Several processes that share one sale: this program, started again.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::AnyError;
use crate::arguments::{Arguments, Store};
use crate::report::follow;
use crate::shop::{Progress, Shop, insist};

/// When no order is served for so much longer than a dead process can hold a lock, the rest is
/// given up.
pub(crate) const MARGIN: Duration = Duration::from_secs(15);

/// Runs the sale to its end, whatever becomes of the processes, and returns
/// their ids, and why it ended early if it did.
pub(crate) async fn run(
    shop: &dyn Shop,
    arguments: &Arguments,
    patience: Duration,
    seen: &mut Progress,
) -> Result<(Vec<u32>, Result<(), AnyError>), AnyError> {
    let mut children = (0..arguments.processes)
        .map(|number| start(arguments, number))
        .collect::<Result<Vec<_>, _>>()?;
    // Each sells as long as its line is open; waiting for a child would close
    // that first.
    let lines: Vec<_> = children
        .iter_mut()
        .map(|child| child.stdin.take())
        .collect();
    let pids: Vec<u32> = children.iter().filter_map(Child::id).collect();
    eprintln!(
        "{} processes sell; kill or pause one and see: {pids:?}",
        pids.len()
    );

    let ended = tokio::select! {
        followed = follow(shop, arguments.orders, seen) => followed.map_err(AnyError::from),
        ended = all_ended(&mut children) => ended,
        stopped = standstill(shop, patience) => stopped,
    };
    // Each ends when it finds no more orders, or when its line is closed. One
    // that does not, or is paused, is killed when it is dropped.
    if ended.is_err() {
        drop(lines);
    }
    let _ = timeout(Duration::from_secs(5), all_ended(&mut children)).await;
    Ok((pids, ended))
}

fn start(arguments: &Arguments, number: usize) -> Result<Child, AnyError> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--process", &number.to_string(), "--sale", &arguments.sale])
        .args(["--orders", &arguments.orders.to_string()])
        .args(["--tasks", &arguments.tasks.to_string()])
        .stdin(Stdio::piped())
        .kill_on_drop(true);
    if !arguments.locked {
        command.arg("--without-lock");
    }
    if let Store::Shared(url) = &arguments.store {
        // Not as an argument: everybody may see those.
        command.env("DLOCK_URL", url);
    }
    Ok(command.spawn()?)
}

/// An error if one of them ended with an error. One that was killed has none:
/// its orders show what it did.
async fn all_ended(children: &mut [Child]) -> Result<(), AnyError> {
    let mut failed = Ok(());
    for (number, child) in children.iter_mut().enumerate() {
        let status = child.wait().await?;
        if status.code().is_some_and(|code| code != 0) {
            failed = Err(format!("process {}: {status}", number + 1).into());
        }
    }
    failed
}

/// An error when nothing has been booked for a long time.
async fn standstill(shop: &dyn Shop, patience: Duration) -> Result<(), AnyError> {
    loop {
        let before = insist(|| shop.progress()).await?;
        sleep(patience).await;
        if insist(|| shop.progress()).await? == before {
            return Err(format!("no order was served for {patience:?}").into());
        }
    }
}

/// Resolves when the process that started this one is gone, however it went:
/// the line to it is our standard input.
pub(crate) async fn parent_ended() {
    let (hang_up, hung_up) = oneshot::channel::<()>();
    // A thread that nobody waits for, unlike those of the runtime.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(hang_up);
    });
    let _ = hung_up.await;
}
