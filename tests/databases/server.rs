//! A real server of the tests' own.

use std::marker::PhantomData;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};

use dlock::backend::sqlx::{self, Connection as _};

use crate::support::dir::TempDir;
use crate::support::port::free_port;
use crate::support::process::Process;
use crate::support::wait::eventually;

/// One kind of database server.
pub(crate) trait Kind: Sized + 'static {
    type Sql: sqlx::Database;

    const SCHEME: &'static str;
    /// Who may do everything.
    const ROOT: &'static str;
    /// The database that each server has.
    const OWN: &'static str;
    /// What it confirms does not outlive the machine: nothing waits for the disk.
    const FAST: &'static [&'static str];

    /// The servers that the tests share which do them no harm.
    fn shared() -> &'static SharedServers<Self>;

    /// Makes an empty server in this folder.
    fn install(folder: &Path);

    /// Runs it.
    fn command(folder: &Path, port: u16) -> Command;

    /// Runs statements.
    async fn run(connection: &mut Connection<Self>, sql: &str) -> sqlx::Result<()>;
}

pub(crate) type Connection<D> = <<D as Kind>::Sql as sqlx::Database>::Connection;

/// A running server, killed when the last test that uses it has ended.
pub(crate) struct Server<D> {
    port: u16,
    process: Mutex<Option<Process>>,
    dir: TempDir,
    arguments: &'static [&'static str],
    kind: PhantomData<fn() -> D>,
}

/// One that waits for no disk, and one that does.
pub(crate) struct SharedServers<D> {
    fast: tokio::sync::Mutex<Weak<Server<D>>>,
    durable: tokio::sync::Mutex<Weak<Server<D>>>,
}

impl<D> SharedServers<D> {
    pub(crate) const fn none() -> Self {
        Self {
            fast: tokio::sync::Mutex::const_new(Weak::new()),
            durable: tokio::sync::Mutex::const_new(Weak::new()),
        }
    }
}

/// It waits for the disk, as it does when nothing is set.
pub(crate) const DURABLE: &[&str] = &[];

impl<D: Kind> Server<D> {
    /// The server that the tests share which do it no harm.
    pub(crate) async fn shared() -> Arc<Self> {
        Self::share(&D::shared().fast, D::FAST).await
    }

    /// The same for tests that ask for strict tokens.
    pub(crate) async fn shared_durable() -> Arc<Self> {
        Self::share(&D::shared().durable, DURABLE).await
    }

    async fn share(
        shared: &tokio::sync::Mutex<Weak<Self>>,
        arguments: &'static [&'static str],
    ) -> Arc<Self> {
        let mut shared = shared.lock().await;
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(Self::start(arguments).await);
        *shared = Arc::downgrade(&server);
        server
    }

    /// A server of the test's own, with these arguments besides those that all
    /// have.
    pub(crate) async fn start(arguments: &'static [&'static str]) -> Self {
        let dir = TempDir::default();
        D::install(dir.path());
        let mut server = Self {
            port: 0,
            process: Mutex::default(),
            dir,
            arguments,
            kind: PhantomData,
        };
        // Somebody may take a free port before our server does.
        for _ in 0..5 {
            server.port = free_port();
            server.launch();
            if server.answers().await {
                return server;
            }
        }
        let log = std::fs::read_to_string(server.dir.path().join("log"));
        panic!("{} did not start: {}", D::SCHEME, log.unwrap_or_default());
    }

    fn launch(&self) {
        let log = std::fs::File::create(self.dir.path().join("log")).expect("a file");
        let mut server = D::command(self.dir.path(), self.port);
        server.args(self.arguments);
        server.stdout(std::process::Stdio::null()).stderr(log);
        let process = Process::spawn(server).expect("a server");
        *self.process.lock().expect("the process") = Some(process);
    }

    /// Waits for it, unless it ends.
    async fn answers(&self) -> bool {
        eventually("the server answers or has ended", async || {
            let ended = self
                .process
                .lock()
                .expect("the process")
                .as_mut()
                .is_none_or(|process| process.ended().is_some());
            if ended {
                return Some(false);
            }
            self.connect(D::OWN).await.ok().map(|_| true)
        })
        .await
    }

    /// `SIGKILL`, as when its machine fails: what it has confirmed it keeps.
    pub(crate) fn kill(&self) {
        *self.process.lock().expect("the process") = None;
    }

    pub(crate) async fn start_again(&self) {
        // It may refuse to start while one of its processes lives.
        eventually("the server starts again", async || {
            self.launch();
            self.answers().await.then_some(())
        })
        .await;
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    async fn connect(&self, database: &str) -> sqlx::Result<Connection<D>> {
        Connection::<D>::connect(&self.url(database, self.port)).await
    }

    /// A connection of the test's own.
    pub(crate) async fn connection(&self, database: &str) -> Connection<D> {
        self.connect(database).await.expect("our own server")
    }

    /// Runs statements, as an operator would.
    pub(crate) async fn run(&self, database: &str, sql: &str) {
        let done = D::run(&mut self.connection(database).await, sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// A new database.
    pub(crate) async fn database(&self) -> String {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.run(D::OWN, &format!("CREATE DATABASE {name}")).await;
        name
    }

    pub(crate) fn url(&self, database: &str, port: u16) -> String {
        format!("{}://{}@127.0.0.1:{port}/{database}", D::SCHEME, D::ROOT)
    }
}
