//! Behind a pooler that gives every transaction another session.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use dlock::{Config, LockError, LockManager};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Executor as _, Row as _};
use tokio::task::JoinSet;

use crate::Server;
use crate::kind::{as_its_user, give_to_its_user};
use crate::support::dir::TempDir;
use crate::support::locks::{all_served, config, connect, had, held, queued};
use crate::support::port::free_port;
use crate::support::process::Process;
use crate::support::wait::{HANG, eventually, within};

/// So many sessions of the server are shared by all.
const SESSIONS: usize = 3;

/// A `pgbouncer` in transaction mode, with very few sessions.
struct Pooler {
    _process: Process,
    _dir: TempDir,
    url: String,
}

impl Pooler {
    async fn start(server: &Arc<Server>) -> Self {
        let database = server.database().await;
        let dir = TempDir::default();
        let settings = dir.path().join("pgbouncer.ini");
        for _ in 0..5 {
            let port = free_port();
            let text = format!(
                "[databases]\n\
                 {database} = host=127.0.0.1 port={} user=postgres\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                 auth_type = any\npool_mode = transaction\ndefault_pool_size = {SESSIONS}\n",
                server.port()
            );
            std::fs::write(&settings, text).expect("a file");
            give_to_its_user(&[dir.path(), &settings]);
            let mut pgbouncer = as_its_user(std::path::Path::new("/usr/sbin/pgbouncer"));
            pgbouncer
                .arg(&settings)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let mut process = Process::spawn(pgbouncer).expect("pgbouncer");
            let url = server.url(&database, port) + "?create_tables=true";
            let config = Config::from_url(&url).expect("a valid URL");
            let answers = eventually("pgbouncer answers or has ended", async || {
                if process.ended().is_some() {
                    return Some(false);
                }
                // Long enough for the tables.
                let config = config.clone().request_timeout(Duration::from_secs(10));
                LockManager::connect(config).await.ok().map(|_| true)
            });
            if answers.await {
                return Self {
                    _process: process,
                    _dir: dir,
                    url,
                };
            }
        }
        panic!("pgbouncer did not start on any of five free ports")
    }

    async fn connect(&self) -> LockManager {
        connect(config(&self.url)).await
    }

    /// How many statements of dlock each session has prepared.
    async fn prepared(&self) -> Vec<i64> {
        let url = self.url.split('?').next().expect("a first part");
        let options: PgConnectOptions = url.parse().expect("a valid URL");
        let options = options.extra_float_digits(None);
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            let mut session = options.connect().await.expect("a connection");
            // The pooler keeps its session for it until the transaction ends.
            session
                .execute(sqlx::raw_sql("BEGIN"))
                .await
                .expect("begun");
            sessions.push(session);
        }
        let mut prepared = Vec::new();
        for session in &mut sessions {
            let count = "SELECT COUNT(*) FROM pg_prepared_statements WHERE name LIKE 'dlock%'";
            let row = session.fetch_one(sqlx::raw_sql(count)).await;
            prepared.push(row.expect("the count").get(0));
        }
        prepared
    }
}

/// More waiters than the pooler has sessions, and none of them is taken up.
#[tokio::test]
async fn locks_work_behind_a_pooler() {
    let server = Server::shared().await;
    let pooler = Pooler::start(&server).await;
    let holder = pooler.connect().await;
    let held = held(holder.lock("held")).await;
    let token = held.token();
    let mut waiting = JoinSet::new();
    for number in 0..6 {
        let manager = pooler.connect().await;
        waiting.spawn(async move {
            let request = manager.lock("held");
            let request = if number % 3 == 0 {
                request.read()
            } else {
                request
            };
            let guard = request.acquire().await?;
            let token = guard.token();
            guard.release().await?;
            Ok::<_, LockError>(token)
        });
        queued(&holder, "held", number + 1).await;
    }
    // The pooler serves others meanwhile.
    for number in 0..10 {
        had(&holder, format!("other:{number}")).await;
    }
    // What one session has prepared another has not, and managers share what is prepared. This may
    // take a while on a busy machine: after an error dlock prepares nothing for a minute, and
    // `prepared` itself ends the sessions that it looks at.
    let other = pooler.connect().await;
    eventually("a session has prepared statements", async || {
        for _ in 0..20 {
            for key in ["again", "and again"] {
                tokio::join!(had(&holder, key), had(&other, key));
            }
        }
        let prepared = within(HANG, pooler.prepared()).await;
        assert!(prepared.iter().all(|&count| count <= 3), "{prepared:?}");
        prepared.iter().any(|&count| count > 0).then_some(())
    })
    .await;
    held.release().await.expect("the release");
    assert!(all_served(waiting).await.iter().all(|next| *next > token));
    // Each release was answered, and so nothing is to be waited for.
    assert!(holder.list("").await.expect("list").is_empty());
}
