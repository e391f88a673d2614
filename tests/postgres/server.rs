//! A real PostgreSQL server of the tests' own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

use dlock::backend::sqlx::postgres::{PgConnectOptions, PgConnection};
use dlock::backend::sqlx::{self, ConnectOptions};

use crate::support::dir::TempDir;
use crate::support::port::free_port;
use crate::support::process::{Process, command};
use crate::support::wait::eventually;

/// A running server, killed when the last test that uses it has ended.
pub(crate) struct Server {
    port: u16,
    process: Mutex<Option<Process>>,
    dir: TempDir,
    arguments: &'static [&'static str],
}

type Shared = tokio::sync::Mutex<Weak<Server>>;

/// What it confirms does not outlive the machine: nothing waits for the disk.
pub(crate) const FAST: &[&str] = &["-c", "fsync=off"];

/// It waits for the disk, as it does when nothing is set.
pub(crate) const DURABLE: &[&str] = &[];

impl Server {
    /// The server that the tests share which do it no harm.
    pub(crate) async fn shared() -> Arc<Self> {
        static SHARED: Shared = Shared::const_new(Weak::new());
        Self::share(&SHARED, FAST).await
    }

    /// The same for tests that ask for strict tokens.
    pub(crate) async fn shared_durable() -> Arc<Self> {
        static SHARED: Shared = Shared::const_new(Weak::new());
        Self::share(&SHARED, DURABLE).await
    }

    async fn share(shared: &Shared, arguments: &'static [&'static str]) -> Arc<Self> {
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
        let data = dir.path().join("data");
        std::fs::create_dir(&data).expect("a folder");
        give_to_its_user(&[dir.path(), &data]);
        let init = as_its_user(&program("initdb"))
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8"])
            .args(["--no-sync", "--locale=C", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .output()
            .expect("initdb");
        let errors = String::from_utf8_lossy(&init.stderr);
        assert!(init.status.success(), "initdb: {errors}");
        let mut server = Self {
            port: 0,
            process: Mutex::default(),
            dir,
            arguments,
        };
        // Somebody may take a free port before our server does.
        for _ in 0..5 {
            server.port = free_port();
            server.launch();
            if server.answers().await {
                return server;
            }
        }
        panic!("postgres did not start: {}", server.log());
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn launch(&self) {
        let log = std::fs::File::create(self.dir.path().join("log")).expect("a file");
        let mut postgres = as_its_user(&program("postgres"));
        postgres
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string()])
            .args(["-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories="])
            .args(["-c", "max_connections=300"])
            .args(self.arguments)
            .stdout(Stdio::null())
            .stderr(log);
        let process = Process::spawn(postgres).expect("postgres");
        *self.process.lock().expect("the process") = Some(process);
    }

    /// Waits for it, unless it ends.
    async fn answers(&self) -> bool {
        eventually("postgres answers or has ended", async || {
            let ended = self
                .process
                .lock()
                .expect("the process")
                .as_mut()
                .is_none_or(|process| process.ended().is_some());
            if ended {
                return Some(false);
            }
            self.connect("postgres").await.ok().map(|_| true)
        })
        .await
    }

    /// `SIGKILL`, as when its machine fails: what it has confirmed it keeps.
    pub(crate) fn kill(&self) {
        *self.process.lock().expect("the process") = None;
    }

    pub(crate) async fn start_again(&self) {
        // It refuses to start while one of its processes lives.
        eventually("postgres starts again", async || {
            self.launch();
            self.answers().await.then_some(())
        })
        .await;
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    async fn connect(&self, database: &str) -> sqlx::Result<PgConnection> {
        let options = PgConnectOptions::new()
            .host("127.0.0.1")
            .port(self.port)
            .username("postgres");
        options.database(database).connect().await
    }

    /// A connection of the test's own.
    pub(crate) async fn connection(&self, database: &str) -> PgConnection {
        self.connect(database).await.expect("our own server")
    }

    /// Runs statements, as an operator would.
    pub(crate) async fn run(&self, database: &str, sql: &str) {
        sqlx::raw_sql(sql)
            .execute(&mut self.connection(database).await)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// A new database.
    pub(crate) async fn database(&self) -> String {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.run("postgres", &format!("CREATE DATABASE {name}"))
            .await;
        name
    }

    pub(crate) fn url(&self, database: &str, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{database}")
    }
}

/// A program of the newest version that is installed.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let mut found: Vec<_> = versions
        .filter_map(|version| Some(version.ok()?.path().join("bin").join(name)))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| PathBuf::from(name))
}

/// PostgreSQL refuses to be run by root: then it is its package's user.
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

pub(crate) fn as_its_user(program: &Path) -> Command {
    if !is_root() {
        return command(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program);
    command
}

pub(crate) fn give_to_its_user(paths: &[&Path]) {
    if !is_root() {
        return;
    }
    let given = Command::new("chown").arg("postgres:").args(paths).status();
    assert!(given.is_ok_and(|status| status.success()), "chown");
}
