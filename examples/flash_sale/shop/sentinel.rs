//! Where the stock is when sentinels say so.

use redis::Client;

use super::ShopError;
use super::redis::patient;

/// The URL of the master that is behind a URL of sentinels. The shop takes the
/// word of the first one that answers, and stays there to the end of the sale:
/// what the locks do when the master moves is dlock's business.
pub(super) async fn master(url: &str) -> Result<String, ShopError> {
    let parts = Parts::of(url).ok_or_else(|| refused("not a URL of sentinels"))?;
    let mut failure = refused("the URL names no sentinel");
    for sentinel in parts.sentinels.split(',') {
        match ask(sentinel, &parts).await {
            Ok((host, port)) => {
                let Parts {
                    login, database, ..
                } = parts;
                return Ok(format!("redis://{login}@{host}:{port}/{database}"));
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn ask(sentinel: &str, parts: &Parts<'_>) -> Result<(String, u16), ShopError> {
    let port = if sentinel.contains(':') { "" } else { ":26379" };
    let login = parts.sentinel_login.as_deref().unwrap_or_default();
    let mut connection = Client::open(format!("redis://{login}{sentinel}{port}"))?
        .get_multiplexed_async_connection_with_config(&patient())
        .await?;
    let address: Option<_> = redis::cmd("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(parts.master)
        .query_async(&mut connection)
        .await?;
    address.ok_or_else(|| refused("the sentinels know no such master"))
}

fn refused(why: &str) -> ShopError {
    ShopError::Store(why.into())
}

/// `redis+sentinel://[login@]s1,s2,s3/master[/database][?…]`, which dlock has
/// found to be in order.
struct Parts<'u> {
    login: &'u str,
    sentinels: &'u str,
    master: &'u str,
    database: &'u str,
    sentinel_login: Option<String>,
}

impl<'u> Parts<'u> {
    fn of(url: &'u str) -> Option<Self> {
        let (_, rest) = url.split_once("://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/')?;
        let (login, sentinels) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (master, database) = path.split_once('/').unwrap_or((path, ""));
        let option = |name: &str| {
            let mut options = query.split('&').filter_map(|option| option.split_once('='));
            options
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value)
        };
        let sentinel_login = option("sentinel_password").map(|password| {
            let user = option("sentinel_username").unwrap_or_default();
            format!("{user}:{password}@")
        });
        Some(Self {
            login,
            sentinels,
            master,
            database: option("db").unwrap_or(database),
            sentinel_login,
        })
    }
}
