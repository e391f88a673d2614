//! What is wrong with a database, and what to do about it.

use std::sync::Arc;
use std::time::Duration;

use dlock::{Config, LockError, LockManager};
use sqlx::Pool;

use dlock_conformance::Store as _;
use tokio::time::sleep;

use super::server::Server;
use super::{Database, DatabaseStore, page};
use crate::support::documented::all_that_locks_need;
use crate::support::locks::{
    self, config, had, held, impatient, is_busy, is_unavailable, served, shown,
};
use crate::support::tls::Certificates;
use crate::support::wait::{HANG, eventually, within};
use crate::tables::Tables as _;
use crate::tables::before::Old;

/// It has all the time that the machine needs to make tables, or to say what is wrong.
pub(crate) async fn connect(url: &str) -> Result<LockManager, LockError> {
    locks::connecting(url, HANG / 2).await
}

async fn refused(url: &str) -> LockError {
    connect(url).await.map(drop).expect_err(url)
}

/// A server, an empty database, and its URL.
pub(crate) async fn fresh<D: Database>() -> (Arc<Server<D>>, String, String) {
    let server = Server::<D>::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    (server, database, url)
}

fn is_config(error: &LockError, says: &[&str]) {
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    locks::says(error, says);
}

pub(crate) async fn missing_tables_are_told_and_made_on_request<D: Database>() {
    let (_server, database, url) = fresh::<D>().await;
    let error = refused(&url).await;
    let says = [&*database, "CREATE TABLE", "?create_tables=true"];
    is_config(&error, &says);
    // Several at once, as when a service is deployed.
    let create = format!("{url}?create_tables=true");
    let all = tokio::join!(connect(&create), connect(&create), connect(&create));
    for manager in [all.0, all.1, all.2] {
        had(&manager.expect("the tables"), "key").await;
    }
    connect(&url).await.expect("they stay");
}

pub(crate) async fn other_tables_are_told<D: Database>() {
    let (server, database, url) = fresh::<D>().await;
    let made = connect(&format!("{url}?create_tables=true")).await;
    made.expect("the tables");
    for (change, says) in [
        ("UPDATE dlock_meta SET version = 7", &["version 7"][..]),
        ("DELETE FROM dlock_meta", &["is empty"]),
        (
            "ALTER TABLE dlock_lock DROP COLUMN waited",
            &["waited", "compare them"],
        ),
    ] {
        server.run(&database, change).await;
        is_config(&refused(&url).await, says);
    }
}

/// Whoever reads the log needs nothing else.
pub(crate) async fn the_sql_of_the_message_makes_the_tables<D: Database>() {
    let store = DatabaseStore::<D>::start().await;
    let url = store.url().replace("?create_tables=true", "");
    let message = refused(&url).await.to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    let sql = message.find("CREATE TABLE").map(|at| &message[at..]);
    for statement in sql.expect(&message).split_terminator(';') {
        store.execute(statement).await;
    }
    serve(&store).await;
    // The other messages say what to run as well.
    store.execute("DELETE FROM dlock_meta").await;
    let message = refused(&url).await.to_string();
    let insert = message
        .find("INSERT INTO dlock_meta")
        .map(|at| &message[at..]);
    let insert = insert.and_then(|rest| rest.split(';').next());
    store.execute(insert.expect(&message)).await;
    connect(&url).await.map(drop).expect("the tables");
}

/// And processes of that version go on with them.
pub(crate) async fn tables_of_the_version_before_are_upgraded<D: Database>() {
    let store = DatabaseStore::<D>::start().await;
    let (create, url) = (store.url(), store.url().replace("?create_tables=true", ""));
    let old = Old::of(&store);
    old.makes_its_tables().await;
    is_config(&refused(&url).await, &["since", "ALTER TABLE dlock_lock"]);
    old.takes("old", 1).await.expect("the lock");
    // Of one that was killed in between.
    let statements = DatabaseStore::<D>::upgrade();
    for statement in &statements[..statements.len() - 1] {
        store.execute(statement).await;
    }
    let all = tokio::join!(connect(&create), connect(&create), connect(&create));
    let [manager, other, _] = [all.0, all.1, all.2].map(|manager| manager.expect("the tables"));
    is_busy(manager.lock("old").try_acquire().await);
    assert!(old.releases("old", 1).await);
    let guard = held(manager.lock("old")).await;
    let holder = shown(&other, "old").await.holders.remove(0);
    assert!(
        holder.process.is_some() && holder.since.is_some(),
        "{holder:?}"
    );
    guard.release().await.expect("the release");
    old.takes("old", 2).await.expect("the lock");
    is_busy(other.lock("old").try_acquire().await);
    // The time that stands there is that of the one before.
    let holder = shown(&other, "old").await.holders.remove(0);
    assert!(
        holder.process.is_none() && holder.since.is_none(),
        "{holder:?}"
    );
}

/// For who has no more than the page.
pub(crate) async fn the_tables_of_the_page_are_enough<D: Database>() {
    let store = DatabaseStore::<D>::start().await;
    for statement in page::statements::<D>("The tables") {
        store.execute(statement).await;
    }
    serve(&store).await;
}

/// Tables that are as dlock needs them.
async fn serve<D: Database>(store: &DatabaseStore<D>) {
    let here = locks::connect(store.as_they_are()).await;
    let there = locks::connect(store.as_they_are()).await;
    all_that_locks_need(&here, &there).await;
}

/// This URL of [`ROOT`](super::server::Kind::ROOT), as that of another user.
fn of_user<D: Database>(url: &str, user: &str) -> String {
    url.replace(&format!("{}@", D::ROOT), &format!("{user}:hunter2@"))
}

pub(crate) async fn a_user_without_rights_is_told_what_to_grant<D: Database>() {
    let (server, database, url) = fresh::<D>().await;
    let made = connect(&format!("{url}?create_tables=true")).await;
    made.expect("the tables");
    let user = format!("user_{database}");
    let make = D::user_without_rights(&user, &database);
    server.run(&database, &make).await;
    let url = of_user::<D>(&url, &user);
    let error = refused(&url).await;
    is_config(&error, &[D::DENIED, "GRANT SELECT"]);
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    server.run(&database, &D::grant(&user, &database)).await;
    let with_all = connect(&format!("{url}?token_floor=1000")).await;
    had(&with_all.expect("its rights"), "key").await;
}

pub(crate) async fn a_wrong_address_or_name_is_told_without_the_password<D: Database>() {
    let (server, _, _) = fresh::<D>().await;
    let port = server.port();
    let (scheme, root, own) = (D::SCHEME, D::ROOT, D::OWN);
    let here = format!("127.0.0.1:{port}");
    for (user, place, says) in [
        ("u", format!("{here}/{own}"), &*D::quoted("u")),
        (root, format!("{here}/nowhere"), "nowhere"),
        (root, "127.0.0.1:1/x".into(), "127.0.0.1:1"),
        (root, "host:port/x".into(), &format!("{scheme}://user")),
        ("u", "h/x?create_tables=maybe".into(), "create_tables"),
        // The drivers pass over it, and one logs its value.
        ("u", "h/x?passwd=hunter2".into(), "unknown parameter"),
        ("u:?=", "h/x".into(), "unknown parameter"),
        ("u", "h/x#y".into(), "percent-encode"),
        // The host ends where the password has a slash.
        ("u:/x", "h/x".into(), "percent-encode"),
        ("u", "h/x%0Ay".into(), r"`x\ny`"),
    ] {
        let url = format!("{scheme}://{user}:hunter2@{place}");
        // Where nobody listens, it is tried until the time is over.
        let time = match &*place {
            "127.0.0.1:1/x" => Duration::from_secs(2),
            _ => HANG / 2,
        };
        let connected = locks::connecting(&url, time).await;
        let error = connected.map(drop).expect_err(&url);
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(says), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
        if let Ok(config) = Config::from_url(&url) {
            assert!(!format!("{config:?}").contains("hunter2"));
        }
    }
}

/// Bodies that have taken up the whole pool wait for a lock; its holder gives
/// it back all the same.
pub(crate) async fn a_pool_is_not_used_up<D: Database>() {
    let (_server, _, url) = fresh::<D>().await;
    let pool = Pool::<D::Sql>::connect(&url).await.expect("a pool");
    let manager = locks::connect(D::over(&pool)).await;
    let guard = held(manager.lock("key")).await;
    let mut all = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        all.push(pool.acquire().await.expect("a connection"));
    }
    let waiting = tokio::spawn(manager.lock("key").acquire());
    guard.release().await.expect("the release");
    drop(served(waiting).await);
}

/// A server that takes no writes has done nothing. So nothing has to be given back, and once the
/// callers were told, nobody makes connections to try that.
pub(crate) async fn what_was_refused_is_not_given_back<D: Database>() {
    let store = DatabaseStore::<D>::on(Arc::new(Server::start(D::FAST).await)).await;
    let (server, database) = (&store.server, &store.database);
    let url = server.url(database, server.port());
    let made = connect(&format!("{url}?create_tables=true")).await;
    made.expect("the tables");
    for make in [
        D::user_without_rights("reader", database),
        D::grant("reader", database),
    ] {
        server.run(database, &make).await;
    }
    let (setting, value) = D::READ_ONLY;
    D::set(server, setting, value).await;
    // Some users may write in spite of it.
    let url = of_user::<D>(&url, "reader");
    let mut connection = store.connection().await;
    let mut sessions = async || {
        let sessions = D::number(&mut connection, D::SESSIONS).await;
        sessions.expect("a count")
    };
    // The time may be over while the last attempt is on its way. Nobody knows whether that was
    // refused, so it is given back, and this is tried again.
    eventually("nobody makes connections", async || {
        let time = Duration::from_secs(1);
        let manager = impatient(|| config(&url).request_timeout(time)).await;
        for key in ["a", "b", "c"] {
            let told = within(HANG, manager.lock(key).try_acquire()).await;
            is_unavailable(told);
        }
        // Such a script may come as late as this.
        sleep(2 * time).await;
        let before = sessions().await;
        sleep(3 * time).await;
        let made = sessions().await - before;
        within(HANG, manager.shutdown()).await;
        // The tables are looked after.
        (made <= 4).then_some(())
    })
    .await;
}

/// Not outages, for which whoever starts the service would look at the server.
pub(crate) async fn certificates_that_are_missing_or_not_trusted_are_wrong_settings<D: Database>() {
    let certificates = Certificates::create();
    let server = Server::<D>::set_up(D::FAST, None, Some(&certificates)).await;
    let url = server.url(D::OWN, server.port());
    let (verifies, ca) = (D::VERIFIES, certificates.authority.display());
    for (url, says) in [
        (format!("{url}?{verifies}&ssl-ca=/nowhere/ca.pem"), "`ssl"),
        (format!("{url}?{verifies}"), "certificate"),
        (
            format!("{url}?{verifies}&ssl-ca={ca}&ssl-cert={ca}"),
            "together",
        ),
    ] {
        is_config(&refused(&url).await, &[says]);
    }
}
