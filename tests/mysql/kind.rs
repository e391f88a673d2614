//! A real MariaDB server of the tests' own.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use sqlx::MySqlConnection;

use crate::databases::server::{Kind, SharedServers};
use crate::support::process::command;
use crate::support::tls::Certificates;

pub(crate) struct MariaDb;

impl Kind for MariaDb {
    type Sql = sqlx::MySql;

    const SCHEME: &'static str = "mysql";
    const PACKAGE: &'static str = "mariadb-server";
    const ROOT: &'static str = "root";
    const OWN: &'static str = "mysql";
    const FAST: &'static [&'static str] = &["--innodb-flush-log-at-trx-commit=2"];

    fn shared() -> &'static SharedServers<Self> {
        static SHARED: SharedServers<MariaDb> = SharedServers::none();
        &SHARED
    }

    fn install(folder: &Path) {
        // A server that starts removes the temporary tables of all that share the
        // folder.
        let tmp = folder.join("tmp");
        std::fs::create_dir(&tmp).expect("a folder");
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&tmp, everybody).expect("a folder for its user");
        let install = Command::new("mariadb-install-db")
            .args(as_its_user())
            .arg("--no-defaults")
            .arg(format!("--datadir={}", folder.join("data").display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg("--innodb-flush-log-at-trx-commit=0")
            .arg(format!("--tmpdir={}", tmp.display()))
            .output()
            .expect("mariadb-install-db");
        let errors = String::from_utf8_lossy(&install.stderr);
        assert!(install.status.success(), "mariadb-install-db: {errors}");
    }

    fn command(folder: &Path, port: u16) -> Command {
        // It is not always in the path of other users.
        let program = ["/usr/sbin/mariadbd", "mariadbd"];
        let program = program.into_iter().find(|path| Path::new(path).exists());
        let data = folder.join("data");
        let mut mariadbd = command(program.unwrap_or("mariadbd"));
        mariadbd
            .arg("--no-defaults")
            .args(as_its_user())
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", data.join("s").display()))
            .arg(format!("--pid-file={}", data.join("p").display()))
            .arg(format!("--tmpdir={}", folder.join("tmp").display()))
            .arg(format!("--port={port}"))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve"])
            .args(["--max-connections=400", "--innodb-buffer-pool-size=32M"])
            // Whoever waits for a row without a limit of its own is to be seen.
            .arg("--innodb-lock-wait-timeout=3600");
        mariadbd
    }

    /// A user asks for it (`REQUIRE SSL`).
    fn encrypts(server: &mut Command, folder: &Path, certificates: &Certificates) {
        let key = folder.join("key.pem");
        std::fs::copy(&certificates.key, &key).expect("our own files");
        let everybody = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&key, everybody).expect("a key for its user");
        let certificate = certificates.certificate.display();
        server
            .arg(format!("--ssl-cert={certificate}"))
            .arg(format!("--ssl-key={}", key.display()));
    }

    async fn run(connection: &mut MySqlConnection, sql: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(sql).execute(connection).await.map(drop)
    }
}

/// It does not like to be run by root: then it becomes its package's user by
/// itself.
fn as_its_user() -> Option<&'static str> {
    nix::unistd::geteuid().is_root().then_some("--user=mysql")
}
