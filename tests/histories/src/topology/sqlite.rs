//! One file that the processes share.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::time::sleep;

use super::{Inflicted, ServerFault, Setting, Topology, set_clock};
use crate::moment::Moment;
use crate::support::dir::TempDir;
use crate::support::machine::Machine;
use crate::support::wait::HANG;

pub(crate) struct OneFile {
    dir: TempDir,
    setting: Setting,
    machine: Option<Machine>,
}

impl OneFile {
    pub(crate) async fn start(setting: Setting, _: &mut Rng) -> Self {
        Self {
            dir: TempDir::default(),
            setting,
            machine: setting.machine(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("locks.db")
    }

    async fn connection(&self, busy: Duration) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(self.path())
            .busy_timeout(busy);
        options.connect().await.expect("our own file")
    }
}

#[async_trait(?Send)]
impl Topology for OneFile {
    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    fn faults(&self) -> Vec<ServerFault> {
        self.setting.faults(
            &[ServerFault::Kept],
            &[ServerFault::ClockAhead, ServerFault::ClockBack],
        )
    }

    fn is_readable_in_the_dark(&self) -> bool {
        true
    }

    fn machine_of_workers(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    /// The log that all write to can be full at any place.
    fn disk_of_workers(&self, draws: &mut Rng) -> u64 {
        let log = std::fs::metadata(self.dir.path().join("locks.db-wal"));
        draws.u64(..=log.map_or(0, |log| log.len()))
    }

    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted {
        if fault != ServerFault::Kept {
            let machine = self.machine.as_ref().expect("a machine of its own");
            set_clock(machine, fault, draws);
            sleep(lasting).await;
            return Inflicted::SOME_ANSWERED;
        }
        let mut keeper = self.connection(HANG).await;
        let begun = sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut keeper).await;
        begun.expect("our own file");
        let from = Moment::now();
        sleep(lasting).await;
        let inflicted = Inflicted::dark_since(from);
        let ended = sqlx::raw_sql("ROLLBACK").execute(&mut keeper).await;
        ended.expect("our own file");
        inflicted
    }

    /// Paused in the middle of a write, it keeps the file's lock.
    async fn is_stuck(&self) -> bool {
        let mut connection = self.connection(Duration::from_millis(300)).await;
        let write = sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK");
        write.execute(&mut connection).await.is_err()
    }
}
