//! A real server of the tests' own.

use std::marker::PhantomData;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use sqlx::Connection as _;

use crate::support::machine::Machine;
use crate::support::port::free_port;
use crate::support::process::Process;
use crate::support::server::{self, Shared};
use crate::support::tls::Certificates;

/// One kind of database server.
pub(crate) trait Kind: Sized + 'static {
    type Sql: sqlx::Database;

    const SCHEME: &'static str;
    const PACKAGE: &'static str;
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

    /// Has it encrypt, with this certificate, the connections of all but
    /// [`ROOT`](Self::ROOT), who alone needs no password.
    fn encrypts(server: &mut Command, folder: &Path, certificates: &Certificates);

    /// See [`server::Kind::kill`].
    fn kill(process: &mut Process) {
        process.kill();
    }

    /// See [`server::Kind::pause`].
    fn pause(process: &Process) {
        process.pause();
    }

    /// See [`server::Kind::resume`].
    fn resume(process: &Process) {
        process.resume();
    }

    /// Runs statements.
    async fn run(connection: &mut Connection<Self>, sql: &str) -> sqlx::Result<()>;
}

pub(crate) type Connection<D> = <<D as Kind>::Sql as sqlx::Database>::Connection;

pub(crate) type Server<D> = server::Server<Database<D>>;

pub(crate) struct Database<D: Kind> {
    port: u16,
    /// Besides those that all have.
    arguments: &'static [&'static str],
    machine: Option<Machine>,
    certificates: Option<Certificates>,
    kind: PhantomData<fn() -> D>,
}

/// One that waits for no disk, and one that does.
pub(crate) struct SharedServers<D: Kind> {
    fast: Shared<Server<D>>,
    durable: Shared<Server<D>>,
}

impl<D: Kind> SharedServers<D> {
    pub(crate) const fn none() -> Self {
        Self {
            fast: Shared::none(),
            durable: Shared::none(),
        }
    }
}

/// It waits for the disk, as it does when nothing is set.
pub(crate) const DURABLE: &[&str] = &[];

impl<D: Kind> Server<D> {
    /// The server that the tests share which do it no harm.
    pub(crate) async fn shared() -> Arc<Self> {
        D::shared().fast.or_start(Self::start(D::FAST)).await
    }

    /// The same for tests that ask for strict tokens.
    pub(crate) async fn shared_durable() -> Arc<Self> {
        D::shared().durable.or_start(Self::start(DURABLE)).await
    }

    /// A server of the test's own.
    pub(crate) async fn start(arguments: &'static [&'static str]) -> Self {
        Self::set_up(arguments, None, None).await
    }

    pub(crate) async fn set_up(
        arguments: &'static [&'static str],
        machine: Option<&Machine>,
        certificates: Option<&Certificates>,
    ) -> Self {
        Self::of(Database {
            port: 0,
            arguments,
            machine: machine.cloned(),
            certificates: certificates.cloned(),
            kind: PhantomData,
        })
        .await
    }
}

impl<D: Kind> server::Kind for Database<D> {
    const NAME: &'static str = D::SCHEME;
    const PACKAGE: &'static str = D::PACKAGE;

    fn port(&self) -> u16 {
        self.port
    }

    fn take_ports(&mut self) {
        self.port = free_port();
    }

    fn install(&self, dir: &Path) {
        D::install(dir);
    }

    fn command(&self, dir: &Path) -> Command {
        let mut server = D::command(dir, self.port);
        server.args(self.arguments);
        if let Some(certificates) = &self.certificates {
            D::encrypts(&mut server, dir, certificates);
        }
        server
    }

    fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    fn kill(process: &mut Process) {
        D::kill(process);
    }

    fn pause(process: &Process) {
        D::pause(process);
    }

    fn resume(process: &Process) {
        D::resume(process);
    }

    async fn answers(&self, _: u32, _: &Path) -> Result<(), String> {
        let connected = self.connect(D::OWN).await;
        connected.map(drop).map_err(|error| error.to_string())
    }
}

impl<D: Kind> Database<D> {
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
