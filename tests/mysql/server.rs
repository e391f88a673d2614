//! A real MariaDB server of the tests' own.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

use dlock::backend::sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
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
}

/// The server that the tests share which do it no harm.
static SHARED: tokio::sync::Mutex<Weak<Server>> = tokio::sync::Mutex::const_new(Weak::new());

impl Server {
    pub(crate) async fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().await;
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(Self::start().await);
        *shared = Arc::downgrade(&server);
        server
    }

    pub(crate) async fn start() -> Self {
        let dir = TempDir::new();
        let mut server = Self {
            port: 0,
            process: Mutex::default(),
            dir,
        };
        let install = Command::new("mariadb-install-db")
            .args(as_its_user())
            .arg("--no-defaults")
            .arg(format!("--datadir={}", server.data().display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg("--innodb-flush-log-at-trx-commit=0")
            .output()
            .expect("mariadb-install-db");
        let errors = String::from_utf8_lossy(&install.stderr);
        assert!(install.status.success(), "mariadb-install-db: {errors}");
        // Somebody may take a free port before our server does.
        for _ in 0..5 {
            server.port = free_port();
            server.launch();
            if server.answers().await {
                return server;
            }
        }
        panic!("mariadbd did not start: {}", server.log());
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn launch(&self) {
        let log = std::fs::File::create(self.dir.path().join("log")).expect("a file");
        // It is not always in the path of other users.
        let program = ["/usr/sbin/mariadbd", "mariadbd"];
        let program = program
            .into_iter()
            .find(|path| PathBuf::from(path).exists());
        let mut mariadbd = command(program.unwrap_or("mariadbd"));
        mariadbd
            .arg("--no-defaults")
            .args(as_its_user())
            .arg(format!("--datadir={}", self.data().display()))
            .arg(format!("--socket={}", self.data().join("s").display()))
            .arg(format!("--pid-file={}", self.data().join("p").display()))
            .arg(format!("--port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve"])
            .args(["--max-connections=400", "--innodb-buffer-pool-size=32M"])
            // Nothing here outlives the machine.
            .arg("--innodb-flush-log-at-trx-commit=2")
            // Whoever waits for a row without a limit of its own is to be seen.
            .arg("--innodb-lock-wait-timeout=3600")
            .stdout(Stdio::null())
            .stderr(log);
        let process = Process::spawn(mariadbd).expect("mariadbd");
        *self.process.lock().expect("the process") = Some(process);
    }

    /// Waits for it, unless it ends.
    async fn answers(&self) -> bool {
        eventually("mariadbd answers or has ended", async || {
            let ended = self
                .process
                .lock()
                .expect("the process")
                .as_mut()
                .is_none_or(|process| process.ended().is_some());
            if ended {
                return Some(false);
            }
            self.connect("mysql").await.ok().map(|_| true)
        })
        .await
    }

    /// `SIGKILL`, as when its machine fails: what it has confirmed it keeps.
    pub(crate) fn kill(&self) {
        *self.process.lock().expect("the process") = None;
    }

    pub(crate) async fn start_again(&self) {
        eventually("mariadbd starts again", async || {
            self.launch();
            self.answers().await.then_some(())
        })
        .await;
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    async fn connect(&self, database: &str) -> sqlx::Result<MySqlConnection> {
        let options = MySqlConnectOptions::new()
            .host("127.0.0.1")
            .port(self.port)
            .username("root");
        options.database(database).connect().await
    }

    /// A connection of the test's own.
    pub(crate) async fn connection(&self, database: &str) -> MySqlConnection {
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
        self.run("mysql", &format!("CREATE DATABASE {name}")).await;
        name
    }

    pub(crate) fn url(&self, database: &str, port: u16) -> String {
        format!("mysql://root@127.0.0.1:{port}/{database}")
    }
}

/// It does not like to be run by root: then it becomes its package's user by
/// itself.
fn as_its_user() -> Option<&'static str> {
    nix::unistd::geteuid().is_root().then_some("--user=mysql")
}
