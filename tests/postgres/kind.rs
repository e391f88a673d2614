//! A real PostgreSQL server of the tests' own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sqlx::PgConnection;

use crate::databases::server::{Kind, SharedServers};
use crate::support::process::{Process, command};
use crate::support::tls::Certificates;

pub(crate) struct PostgreSql;

impl Kind for PostgreSql {
    type Sql = sqlx::Postgres;

    const SCHEME: &'static str = "postgres";
    const PACKAGE: &'static str = "postgresql";
    const ROOT: &'static str = "postgres";
    const OWN: &'static str = "postgres";
    const FAST: &'static [&'static str] = &["-c", "fsync=off"];

    fn shared() -> &'static SharedServers<Self> {
        static SHARED: SharedServers<PostgreSql> = SharedServers::none();
        &SHARED
    }

    fn install(folder: &Path) {
        let data = folder.join("data");
        std::fs::create_dir(&data).expect("a folder");
        give_to_its_user(&[folder, &data]);
        let init = as_its_user(&program("initdb"))
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8"])
            .args(["--no-sync", "--locale=C", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .output()
            .expect("initdb");
        let errors = String::from_utf8_lossy(&init.stderr);
        assert!(init.status.success(), "initdb: {errors}");
    }

    fn command(folder: &Path, port: u16) -> Command {
        let mut postgres = as_its_user(&program("postgres"));
        postgres
            .arg("-D")
            .arg(folder.join("data"))
            .args(["-p", &port.to_string()])
            .args(["-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories="])
            .args(["-c", "max_connections=300"]);
        postgres
    }

    fn encrypts(server: &mut Command, folder: &Path, certificates: &Certificates) {
        let rules = "host all postgres 127.0.0.1/32 trust\n\
                     hostssl all all 127.0.0.1/32 scram-sha-256\n";
        std::fs::write(folder.join("data/pg_hba.conf"), rules).expect("our own file");
        // It takes no key that others could read.
        let key = folder.join("key.pem");
        std::fs::copy(&certificates.key, &key).expect("our own files");
        give_to_its_user(&[&key]);
        let certificate = certificates.certificate.display();
        server
            .args(["-c", "ssl=on", "-c"])
            .arg(format!("ssl_cert_file={certificate}"))
            .arg("-c")
            .arg(format!("ssl_key_file={}", key.display()));
    }

    /// By what its manual calls an immediate shutdown, which is a crash to what it
    /// keeps. If its first process was killed, the others would find out; but one that
    /// writes at that moment to a folder that is removed tries for ever.
    fn kill(process: &mut Process) {
        process.quit();
    }

    /// Each connection has a process of its own, which would go on to answer.
    fn pause(process: &Process) {
        process.pause_with_children();
    }

    fn resume(process: &Process) {
        process.resume_with_children();
    }

    async fn run(connection: &mut PgConnection, sql: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(sql).execute(connection).await.map(drop)
    }
}

/// A program of the newest version that is installed.
pub(crate) fn program(name: &str) -> PathBuf {
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
