//! A bank in this program's memory.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dlock::FencingToken;

use super::{Bank, BankError, Pair, START};

/// What reading or writing takes, as with a bank elsewhere.
const PACE: Duration = Duration::from_millis(1);

pub(crate) struct Memory {
    accounts: Mutex<Vec<Account>>,
}

#[derive(Clone)]
struct Account {
    balance: i64,
    newest: FencingToken,
}

impl Memory {
    pub(crate) fn new(accounts: usize) -> Self {
        let account = Account {
            balance: START,
            newest: FencingToken::NONE,
        };
        let accounts = Mutex::new(vec![account; accounts]);
        Self { accounts }
    }

    fn accounts(&self) -> MutexGuard<'_, Vec<Account>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Bank for Memory {
    async fn read(&self, accounts: Pair<usize>) -> Result<Pair<i64>, BankError> {
        tokio::time::sleep(PACE).await;
        let all = self.accounts();
        Ok(accounts.map(|account| all[account].balance))
    }

    async fn write(
        &self,
        accounts: Pair<usize>,
        balances: Pair<i64>,
        tokens: Option<Pair<FencingToken>>,
    ) -> Result<(), BankError> {
        tokio::time::sleep(PACE).await;
        let mut all = self.accounts();
        if let Some(tokens) = tokens {
            for (account, token) in accounts.into_iter().zip(tokens) {
                if token < all[account].newest {
                    return Err(BankError::Stale);
                }
            }
            for (account, token) in accounts.into_iter().zip(tokens) {
                all[account].newest = token;
            }
        }
        for (account, balance) in accounts.into_iter().zip(balances) {
            all[account].balance = balance;
        }
        Ok(())
    }

    async fn total(&self) -> Result<i64, BankError> {
        Ok(self.accounts().iter().map(|account| account.balance).sum())
    }
}
