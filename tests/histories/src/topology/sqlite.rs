//! One file that the processes share.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use dlock::backend::sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use dlock::backend::sqlx::{self, ConnectOptions as _};
use fastrand::Rng;
use tokio::time::sleep;

use super::{Inflicted, ServerFault, Topology};
use crate::moment::Moment;
use crate::support::dir::TempDir;
use crate::support::wait::HANG;

pub(crate) struct OneFile {
    dir: TempDir,
}

impl OneFile {
    pub(crate) async fn start(_: &mut Rng) -> Self {
        Self {
            dir: TempDir::default(),
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

    fn faults(&self) -> &'static [ServerFault] {
        &[ServerFault::Kept]
    }

    async fn inflict(&mut self, _: ServerFault, lasting: Duration, _: &mut Rng) -> Inflicted {
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
