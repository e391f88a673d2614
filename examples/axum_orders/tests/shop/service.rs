//! The service as it is run: a process.

use std::fs::File;
use std::net::SocketAddr;

use crate::client::{Call, call};
use crate::support::dir::TempDir;
use crate::support::process::{Process, command};
use crate::support::wait::eventually;

/// A running copy of the service, killed on drop.
pub(crate) struct Service {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    _dir: TempDir,
}

impl Service {
    pub(crate) async fn start(store: &str, stock: u64, bank_takes: &str) -> Self {
        let dir = TempDir::default();
        let printed = dir.path().join("printed");
        let mut program = command(env!("CARGO_BIN_EXE_axum_orders"));
        program
            .args(["--listen", "127.0.0.1:0", "--bank-ms", bank_takes])
            .args(["--stock", &stock.to_string()])
            .env("DLOCK_URL", store)
            .stdout(File::create(&printed).expect("a file"));
        let mut process = Process::spawn(program).expect("the service");
        let address = eventually("it listens", async || {
            assert_eq!(process.ended(), None, "the service has ended");
            let printed = std::fs::read_to_string(&printed).expect("the file");
            let address = printed.strip_prefix("listening on http://")?;
            address.strip_suffix('\n')?.parse().ok()
        })
        .await;
        Self {
            process,
            address,
            _dir: dir,
        }
    }

    /// A blue mug.
    pub(crate) async fn place(&self) -> u64 {
        let sku = "blue-mug";
        let placed = call(self.address, Call::Place { sku, quantity: 1 }).await;
        let id = placed.expect("an answer").body["id"].as_u64();
        id.expect("an id")
    }

    pub(crate) async fn ends_well(&mut self) {
        let status = eventually("it has ended", async || self.process.ended()).await;
        assert!(status.success(), "{status}");
    }
}
