//! A bank that can only read balances and write them. What happens in between
//! is for the locks to keep apart.

mod memory;
#[cfg(feature = "redis")]
mod redis;

use std::sync::Arc;

use async_trait::async_trait;
use dlock::FencingToken;

use crate::arguments::Arguments;

/// What each account begins with.
pub(crate) const START: i64 = 1000;

/// What is wanted.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) amount: i64,
}

impl Transfer {
    pub(crate) fn random(accounts: usize) -> Self {
        let from = fastrand::usize(..accounts);
        let to = (from + fastrand::usize(1..accounts)) % accounts;
        let amount = fastrand::i64(1..=100);
        Self { from, to, amount }
    }
}

/// Two accounts, `from` and `to`: in reading and writing, and of tokens too.
pub(crate) type Pair<T> = [T; 2];

#[async_trait]
pub(crate) trait Bank: Send + Sync {
    async fn read(&self, accounts: Pair<usize>) -> Result<Pair<i64>, BankError>;

    /// Writes both balances or none. With tokens, it refuses whoever is not the
    /// newest on both accounts: a program that was paused until another had its
    /// locks does not undo what that one has done.
    async fn write(
        &self,
        accounts: Pair<usize>,
        balances: Pair<i64>,
        tokens: Option<Pair<FencingToken>>,
    ) -> Result<(), BankError>;

    /// All the money there is.
    async fn total(&self) -> Result<i64, BankError>;
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BankError {
    #[error("not that much money in the account")]
    Poor,
    #[error("somebody newer has been at the account")]
    Stale,
    #[error("the bank cannot be reached: {0}")]
    Store(#[from] Box<dyn std::error::Error + Send + Sync>),
}

pub(crate) async fn open(arguments: &Arguments) -> Result<Arc<dyn Bank>, BankError> {
    match &arguments.store {
        None => Ok(Arc::new(memory::Memory::new(arguments.accounts))),
        #[cfg(feature = "redis")]
        Some(url) if url.starts_with("redis") => {
            let bank = redis::Redis::open(url, &arguments.bank, arguments.accounts);
            Ok(Arc::new(bank.await?))
        }
        Some(_) => Err(BankError::Store(
            "this bank keeps its accounts in memory: or on redis:// only".into(),
        )),
    }
}

/// Moves the money. Whoever reads or writes one of the accounts meanwhile makes
/// money, or makes it vanish.
pub(crate) async fn book(
    bank: &dyn Bank,
    transfer: &Transfer,
    tokens: &[FencingToken],
) -> Result<(), BankError> {
    let accounts = [transfer.from, transfer.to];
    let [from, to] = bank.read(accounts).await?;
    if from < transfer.amount {
        return Err(BankError::Poor);
    }
    let balances = [from - transfer.amount, to + transfer.amount];
    bank.write(accounts, balances, tokens.try_into().ok()).await
}
