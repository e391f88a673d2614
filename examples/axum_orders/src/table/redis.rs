//! A table in Redis: a hash of the records, and one of the newest tokens.

use std::sync::LazyLock;

use async_trait::async_trait;
use dlock::FencingToken;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{AsyncCommands, RedisError, Script};

use super::{Change, TableError};
use crate::PATIENCE;

/// A table that all copies of the service share.
pub struct Table {
    connection: ConnectionManager,
    shop: String,
}

/// Tokens are compared as decimal texts: Lua's numbers have 53 bits.
macro_rules! fenced {
    ($then:literal) => {
        LazyLock::new(|| {
            Script::new(concat!(
                "-- KEYS: records, fences; ARGV: a record, its token or '', its value; again
                 for i = 1, #ARGV, 3 do
                   local record, token = ARGV[i], ARGV[i + 1]
                   if token ~= '' and redis.call('HEXISTS', KEYS[1], record) == 1 then
                     local newest = redis.call('HGET', KEYS[2], record) or ''
                     if #token < #newest or (#token == #newest and token < newest) then
                       return redis.error_reply('OUTDATED token')
                     end
                     redis.call('HSET', KEYS[2], record, token)
                   end
                 end\n",
                $then
            ))
        })
    };
}

static READ: LazyLock<Script> = fenced!("return redis.call('HGET', KEYS[1], ARGV[1])");
static WRITE: LazyLock<Script> = fenced!(
    "for i = 1, #ARGV, 3 do
       redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
     end"
);

impl From<RedisError> for TableError {
    fn from(error: RedisError) -> Self {
        if error.code() == Some("OUTDATED") {
            Self::Outdated
        } else {
            Self::Store(error.into())
        }
    }
}

impl Table {
    /// The table of a shop, over a connection that heals by itself.
    ///
    /// # Errors
    ///
    /// What the client says if Redis does not answer.
    pub async fn connect(url: &str, shop: &str) -> Result<Self, TableError> {
        // The client's own limit of half a second fails orders on a busy machine.
        let config = ConnectionManagerConfig::new().set_response_timeout(Some(PATIENCE));
        let client = redis::Client::open(url)?;
        let connection = client.get_connection_manager_with_config(config).await?;
        Ok(Self {
            connection,
            shop: shop.to_owned(),
        })
    }

    fn key(&self, kind: &str) -> String {
        format!("shop:{}:{kind}", self.shop)
    }

    fn connection(&self) -> ConnectionManager {
        self.connection.clone()
    }

    async fn fenced<T: redis::FromRedisValue>(
        &self,
        script: &Script,
        changes: &[Change],
    ) -> Result<T, TableError> {
        let mut call = script.prepare_invoke();
        call.key(self.key("records")).key(self.key("fences"));
        for Change {
            record,
            value,
            token,
        } in changes
        {
            let token = token.map(|token| token.to_string()).unwrap_or_default();
            call.arg(record).arg(token).arg(value);
        }
        Ok(call.invoke_async(&mut self.connection()).await?)
    }
}

#[async_trait]
impl super::Table for Table {
    async fn next_id(&self) -> Result<u64, TableError> {
        Ok(self.connection().incr(self.key("last_id"), 1).await?)
    }

    async fn insert(&self, record: &str, value: &str) -> Result<(), TableError> {
        let records = self.key("records");
        Ok(self.connection().hset_nx(records, record, value).await?)
    }

    async fn read(
        &self,
        record: &str,
        token: Option<FencingToken>,
    ) -> Result<Option<String>, TableError> {
        let record = Change::new(record.to_owned(), String::new(), token);
        self.fenced(&READ, &[record]).await
    }

    async fn write(&self, changes: Vec<Change>) -> Result<(), TableError> {
        self.fenced(&WRITE, &changes).await
    }

    async fn all(&self) -> Result<Vec<(String, String)>, TableError> {
        Ok(self.connection().hgetall(self.key("records")).await?)
    }
}
