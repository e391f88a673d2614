//! A bank in Redis: one hash of balances, one of the newest tokens.

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use dlock::FencingToken;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, RedisError, Script};

use super::{Bank, BankError, Pair, START};

/// Programs come and go; a bank that nobody has used for so long is closed.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// Tokens are compared as decimal texts: Lua's numbers have 53 bits.
static WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "-- KEYS: balances, tokens; ARGV: account, balance, token or '', and again
         for i = 1, #ARGV, 3 do
           local token, newest = ARGV[i + 2], redis.call('HGET', KEYS[2], ARGV[i]) or ''
           if token ~= '' and (#token < #newest or (#token == #newest and token < newest)) then
             return 0
           end
         end
         for i = 1, #ARGV, 3 do
           redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
           if ARGV[i + 2] ~= '' then
             redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
           end
         end
         return 1",
    )
});

pub(crate) struct Redis {
    connection: MultiplexedConnection,
    balances: String,
    tokens: String,
}

impl From<RedisError> for BankError {
    fn from(error: RedisError) -> Self {
        Self::Store(error.into())
    }
}

impl Redis {
    /// Opens the accounts that are not there yet.
    pub(crate) async fn open(url: &str, bank: &str, accounts: usize) -> Result<Self, BankError> {
        // The client's own half a second is over at once for a process that was
        // stopped in the middle of a command, and its second for a connection on a busy machine.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(30)))
            .set_response_timeout(None);
        let mut connection = redis::Client::open(url)?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let this = Self {
            balances: format!("{bank}:balances"),
            tokens: format!("{bank}:tokens"),
            connection: connection.clone(),
        };
        let mut open = redis::pipe();
        for account in 0..accounts {
            open.hset_nx(&this.balances, account, START).ignore();
        }
        let seconds = FORGOTTEN_AFTER.as_secs() as i64;
        open.hset_nx(&this.tokens, "", "").ignore();
        open.expire(&this.balances, seconds).ignore();
        open.expire(&this.tokens, seconds).ignore();
        open.exec_async(&mut connection).await?;
        Ok(this)
    }
}

#[async_trait]
impl Bank for Redis {
    async fn read(&self, accounts: Pair<usize>) -> Result<Pair<i64>, BankError> {
        let mut connection = self.connection.clone();
        let (from, to) = connection.hmget(&self.balances, &accounts).await?;
        Ok([from, to])
    }

    async fn write(
        &self,
        accounts: Pair<usize>,
        balances: Pair<i64>,
        tokens: Option<Pair<FencingToken>>,
    ) -> Result<(), BankError> {
        let mut write = WRITE.prepare_invoke();
        write.key(&self.balances).key(&self.tokens);
        for i in 0..2 {
            let token = tokens.map_or_else(String::new, |tokens| tokens[i].to_string());
            write.arg(accounts[i]).arg(balances[i]).arg(token);
        }
        let written: bool = write.invoke_async(&mut self.connection.clone()).await?;
        written.then_some(()).ok_or(BankError::Stale)
    }

    async fn total(&self) -> Result<i64, BankError> {
        let mut connection = self.connection.clone();
        let balances: Vec<i64> = connection.hvals(&self.balances).await?;
        Ok(balances.into_iter().sum())
    }
}
