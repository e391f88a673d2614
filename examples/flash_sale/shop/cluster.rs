//! Where the stock is in a cluster.

use redis::{Client, ServerErrorKind};

use super::ShopError;
use super::redis::patient;

/// The URL of the node that has a key's slot. The shop stays there to the end of
/// the sale: what the locks do when slots move is dlock's business.
pub(super) async fn owner(url: &str, key: &str) -> Result<String, ShopError> {
    let (_, rest) = url
        .split_once("://")
        .ok_or_else(|| refused("not a URL of a cluster"))?;
    let (authority, _) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    let mut failure = refused("the URL names no node");
    for host in hosts.split(',') {
        match ask(format!("redis://{login}{host}"), key).await {
            Ok(None) => return Ok(format!("redis://{login}{host}")),
            Ok(Some(owner)) => return Ok(format!("redis://{login}{owner}")),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Who has the slot, if it is another node.
async fn ask(node: String, key: &str) -> Result<Option<String>, ShopError> {
    let mut connection = Client::open(node)?
        .get_multiplexed_async_connection_with_config(&patient())
        .await?;
    let answer = redis::cmd("EXISTS")
        .arg(key)
        .query_async::<bool>(&mut connection)
        .await;
    match answer {
        Ok(_) => Ok(None),
        // A replica sends on to its master, too.
        Err(error) if error.kind() == ServerErrorKind::Moved.into() => {
            let owner = error.detail().and_then(|text| text.split(' ').nth(1));
            Ok(Some(owner.unwrap_or_default().to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

fn refused(why: &str) -> ShopError {
    ShopError::Store(why.into())
}
