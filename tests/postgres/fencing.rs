//! The example of `docs/fencing.md`: a holder that was paused for longer than
//! its ttl does not overwrite the work of the one that came after it.

use std::io::Write as _;

use crate::Server;
use crate::example::example;
use crate::support::process::command;
use crate::support::program::Program;
use crate::support::wait::{HANG, eventually, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_holders_write_is_refused() {
    let server = Server::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    let program = tokio::task::spawn_blocking(|| example("guarding_writes"));
    let program = program.await.expect("the example");
    let sale = || {
        let mut sale = command(&program);
        sale.arg(&url);
        sale
    };

    // Its payment is a file that grows a line, and so comes when we say.
    let payments = crate::support::dir::TempDir::default();
    let pipe = payments.path().join("payment");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let open = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&pipe);
    let mut payment = open.expect("the pipe");
    let mut late = Program::start_with(sale(), payment.try_clone().expect("the pipe").into());
    let reads = async || late.printed().contains("10 there").then_some(());
    eventually("the first has read", reads).await;
    late.process.pause();

    // Nobody has to pay here.
    let mut next = Program::start(sale());
    let output = within(2 * HANG, next.end()).await;
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("sold, 9 left"), "{printed}");

    late.process.resume();
    payment.write_all(b"paid\n").expect("the pipe");
    let output = within(HANG, late.end()).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    assert!(errors.contains("Outdated"), "{errors}");
    let pieces: i64 = sqlx::query_scalar("SELECT pieces FROM guarded_stock")
        .fetch_one(&mut server.connection(&database).await)
        .await
        .expect("the stock");
    assert_eq!(pieces, 9);
}
