//! One database server that keeps what it has confirmed.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;

use super::{Inflicted, ServerFault, Setting, Topology};
use crate::databases::mysql::MariaDb;
use crate::databases::postgres::PostgreSql;
use crate::databases::server::{DURABLE, Kind, Server};
use crate::support::machine::Machine;
use crate::support::proxy::Proxy;
use crate::support::tls::Certificates;

/// What differs from database to database.
pub(crate) trait Own: Kind {
    /// Makes a user with a password whose connections are to be encrypted, and gives it
    /// a database.
    fn user(database: &str) -> String;

    /// Asks for that, with this authority.
    const ENCRYPTED: &'static str;

    /// Whether what a release has answered is on the disk. If not, a crash brings the
    /// lease back, which ends by itself, as the store's page says.
    const KEEPS_RELEASES: bool;

    /// What the server's clock shows, in microseconds.
    async fn time(server: &Server<Self>) -> u64;
}

impl Own for PostgreSql {
    fn user(database: &str) -> String {
        format!(
            "CREATE ROLE locks LOGIN PASSWORD 'p@ss/word'; \
             ALTER DATABASE {database} OWNER TO locks"
        )
    }

    const ENCRYPTED: &'static str = "sslmode=verify-full&sslrootcert";

    const KEEPS_RELEASES: bool = false;

    async fn time(server: &Server<Self>) -> u64 {
        let mut connection = server.connection(Self::OWN).await;
        let asked = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let time: i64 = sqlx::query_scalar(asked)
            .fetch_one(&mut connection)
            .await
            .expect("the time");
        time.unsigned_abs()
    }
}

impl Own for MariaDb {
    fn user(database: &str) -> String {
        format!(
            "CREATE USER locks@'%' IDENTIFIED BY 'p@ss/word' REQUIRE SSL; \
             GRANT ALL ON {database}.* TO locks@'%'"
        )
    }

    const ENCRYPTED: &'static str = "ssl-mode=verify_identity&ssl-ca";

    const KEEPS_RELEASES: bool = true;

    async fn time(server: &Server<Self>) -> u64 {
        let mut connection = server.connection(Self::OWN).await;
        let asked = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
        let time: i64 = sqlx::query_scalar(asked)
            .fetch_one(&mut connection)
            .await
            .expect("the time");
        time.unsigned_abs()
    }
}

pub(crate) struct OneDatabase<D: Kind> {
    server: Server<D>,
    database: String,
    proxy: Proxy,
    setting: Setting,
    machine: Option<Machine>,
    certificates: Option<Certificates>,
}

impl<D: Own> OneDatabase<D> {
    pub(crate) async fn start(setting: Setting, _: &mut Rng) -> Self {
        let machine = setting.machine();
        let certificates = setting.secure.then(Certificates::create);
        let (on, shows) = (machine.as_ref(), certificates.as_ref());
        let server = Server::<D>::set_up(DURABLE, on, shows).await;
        let database = server.database().await;
        if setting.secure {
            for statement in D::user(&database).split("; ") {
                server.run(D::OWN, statement).await;
            }
        }
        Self {
            database,
            proxy: Proxy::to(server.port()),
            server,
            setting,
            machine,
            certificates,
        }
    }

    fn url_at(&self, port: u16) -> String {
        let Some(certificates) = &self.certificates else {
            let url = self.server.url(&self.database, port);
            return format!("{url}?create_tables=true");
        };
        let (scheme, database, encrypted) = (D::SCHEME, &self.database, D::ENCRYPTED);
        let authority = certificates.authority.display();
        format!(
            "{scheme}://locks:p%40ss%2Fword@127.0.0.1:{port}/{database}\
             ?create_tables=true&{encrypted}={authority}"
        )
    }
}

#[async_trait(?Send)]
impl<D: Own> Topology for OneDatabase<D> {
    fn url(&self) -> String {
        self.url_at(self.proxy.port())
    }

    fn url_past_proxies(&self) -> String {
        self.url_at(self.server.port())
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    fn faults(&self) -> Vec<ServerFault> {
        self.setting.faults(
            &[ServerFault::Killed, ServerFault::Paused],
            &[
                ServerFault::ClockAhead,
                ServerFault::ClockBack,
                ServerFault::DiskFull,
            ],
        )
    }

    /// PostgreSQL ends as in a crash when it cannot write its log.
    fn may_undo_releases(&self, fault: ServerFault) -> bool {
        !D::KEEPS_RELEASES && matches!(fault, ServerFault::Killed | ServerFault::DiskFull)
    }

    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted {
        let inflicted = super::harm(&mut self.server, fault, lasting, draws).await;
        if let Some(machine) = &self.machine {
            let before = machine.now();
            let told = Duration::from_micros(D::time(&self.server).await);
            machine.is_between(before, told);
        }
        inflicted
    }
}
