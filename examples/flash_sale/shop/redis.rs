//! A shop in Redis: plain keys that are read and written, with a look at the
//! fencing token before each.

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use dlock::FencingToken;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, Script};

use super::{ARTICLES, Progress, ShopError, cluster, sentinel};
use crate::report::Receipt;

/// Should this program be killed, its keys go after this time.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// How long a connection may take. The client's own limits, of a second and less, are over for an
/// answer that a busy machine gives late.
const LIMIT: Duration = Duration::from_secs(30);

pub(super) fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LIMIT))
        .set_response_timeout(Some(LIMIT))
}

/// Tokens are compared as decimal texts: Lua's numbers have 53 bits.
macro_rules! fenced {
    ($then:literal) => {
        LazyLock::new(|| {
            Script::new(concat!(
                "-- KEYS: fence, stock, book, sold; ARGV: token or '', left, order, receipt
                 local token, newest = ARGV[1], redis.call('GET', KEYS[1]) or ''
                 if token ~= '' then
                   if #token < #newest or (#token == #newest and token < newest) then
                     return false
                   end
                   redis.call('SET', KEYS[1], token, 'KEEPTTL')
                 end\n",
                $then
            ))
        })
    };
}

static READ: LazyLock<Script> = fenced!("return redis.call('GET', KEYS[2])");
static WRITE: LazyLock<Script> = fenced!(
    "redis.call('SET', KEYS[2], ARGV[2], 'KEEPTTL')
     redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
     redis.call('INCR', KEYS[4])
     return ARGV[2]"
);

pub(crate) struct Shop {
    connection: MultiplexedConnection,
    sale: String,
}

impl From<redis::RedisError> for ShopError {
    fn from(error: redis::RedisError) -> Self {
        Self::Store(error.into())
    }
}

/// The server with the stock. Where the locks are on a majority of several
/// servers, the first of them has the stock too.
fn server(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("+redlock://") else {
        return url.to_owned();
    };
    let (hosts, end) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let first = hosts.split(',').next().unwrap_or_default();
    format!("{scheme}://{first}{end}")
}

/// Begins the keys of a sale: by the braces, a cluster has all of them in one
/// slot.
fn slot_key(sale: &str) -> String {
    format!("{{{sale}}}")
}

impl Shop {
    pub(crate) async fn connect(url: &str, sale: &str) -> Result<Self, ShopError> {
        let kind = url.split_once(':').map_or("", |(scheme, _)| scheme);
        let server = match kind {
            "redis+sentinel" => sentinel::master(url).await?,
            "redis+cluster" => cluster::owner(url, &slot_key(sale)).await?,
            _ => server(url),
        };
        // Any limit is over at once for a process that was stopped in the middle of a command.
        let config = patient().set_response_timeout(None);
        let connection = redis::Client::open(server)?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(Self {
            connection,
            sale: sale.to_owned(),
        })
    }

    fn key(&self, kind: &str, which: impl std::fmt::Display) -> String {
        format!("{}:{kind}:{which}", slot_key(&self.sale))
    }

    fn keys(&self) -> Vec<String> {
        let articles =
            (0..ARTICLES).flat_map(|sku| ["stock", "fence"].map(|kind| self.key(kind, sku)));
        articles
            .chain(["next", "sold", "book"].map(|which| self.key("orders", which)))
            .collect()
    }

    async fn fenced(
        &self,
        script: &Script,
        sku: usize,
        token: Option<FencingToken>,
        write: Option<(u64, &Receipt)>,
    ) -> Result<u64, ShopError> {
        let mut call = script.prepare_invoke();
        call.key(self.key("fence", sku))
            .key(self.key("stock", sku))
            .key(self.key("orders", "book"))
            .key(self.key("orders", "sold"))
            .arg(token.map(|token| token.to_string()).unwrap_or_default());
        if let Some((left, sale)) = write {
            call.arg(left).arg(sale.order).arg(sale.to_string());
        }
        let answer: Option<u64> = call.invoke_async(&mut self.connection.clone()).await?;
        answer.ok_or(ShopError::Outdated)
    }
}

#[async_trait]
impl super::Shop for Shop {
    async fn fill(&self, stock: u64) -> Result<(), ShopError> {
        let mut all = redis::pipe();
        for sku in 0..ARTICLES {
            all.set(self.key("stock", sku), stock).ignore();
            all.set(self.key("fence", sku), 0).ignore();
        }
        all.set(self.key("orders", "next"), 0).ignore();
        all.set(self.key("orders", "sold"), 0).ignore();
        all.hset(self.key("orders", "book"), "", "").ignore();
        for key in self.keys() {
            all.expire(key, FORGOTTEN_AFTER.as_secs() as i64).ignore();
        }
        Ok(all.exec_async(&mut self.connection.clone()).await?)
    }

    async fn stock(&self, sku: usize, token: Option<FencingToken>) -> Result<u64, ShopError> {
        self.fenced(&READ, sku, token, None).await
    }

    async fn set_stock(
        &self,
        left: u64,
        token: Option<FencingToken>,
        sale: &Receipt,
    ) -> Result<(), ShopError> {
        self.fenced(&WRITE, sale.sku, token, Some((left, sale)))
            .await
            .map(drop)
    }

    async fn next_order(&self) -> Result<u64, ShopError> {
        let next: u64 = self
            .connection
            .clone()
            .incr(self.key("orders", "next"), 1)
            .await?;
        Ok(next - 1)
    }

    async fn book(&self, receipt: &Receipt) -> Result<(), ShopError> {
        let book = self.key("orders", "book");
        Ok(self
            .connection
            .clone()
            .hset_nx(book, receipt.order, receipt.to_string())
            .await?)
    }

    async fn progress(&self) -> Result<Progress, ShopError> {
        let (pages, sold): (u64, u64) = redis::pipe()
            .hlen(self.key("orders", "book"))
            .get(self.key("orders", "sold"))
            .query_async(&mut self.connection.clone())
            .await?;
        let booked = pages.saturating_sub(1);
        Ok(Progress { booked, sold })
    }

    async fn close(&self) -> Result<Vec<Receipt>, ShopError> {
        let pages: Vec<String> = self
            .connection
            .clone()
            .hvals(self.key("orders", "book"))
            .await?;
        let () = self.connection.clone().del(self.keys()).await?;
        Ok(pages.iter().filter_map(|page| page.parse().ok()).collect())
    }
}
