//! The bank: it charges as often as it is asked, and can be asked what it has
//! charged.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::AsyncCommands;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};

use crate::PATIENCE;

/// A payment provider.
#[async_trait]
pub trait Bank: Send + Sync {
    /// Whether an order was charged for.
    async fn has_charged(&self, order: u64) -> Result<bool, BankError> {
        Ok(self.charges().await?.contains(&order))
    }

    /// Takes the money for an order.
    async fn charge(&self, order: u64) -> Result<(), BankError>;

    /// The orders it has charged for, each as often as it has.
    async fn charges(&self) -> Result<Vec<u64>, BankError>;
}

/// The bank did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the bank: {0}")]
pub struct BankError(#[source] Box<dyn Error + Send + Sync>);

/// A bank of this process.
pub struct InMemory {
    takes: Duration,
    charges: Mutex<Vec<u64>>,
}

impl InMemory {
    /// A bank that takes this long for a charge.
    pub fn new(takes: Duration) -> Self {
        Self {
            takes,
            charges: Mutex::default(),
        }
    }
}

#[async_trait]
impl Bank for InMemory {
    async fn charge(&self, order: u64) -> Result<(), BankError> {
        tokio::time::sleep(self.takes).await;
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        charges.push(order);
        Ok(())
    }

    async fn charges(&self) -> Result<Vec<u64>, BankError> {
        let charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(charges.clone())
    }
}

/// A bank that all copies of the service ask, played by Redis.
pub struct InRedis {
    takes: Duration,
    connection: ConnectionManager,
    list: String,
}

impl From<redis::RedisError> for BankError {
    fn from(error: redis::RedisError) -> Self {
        Self(error.into())
    }
}

impl InRedis {
    /// The bank of a shop, which takes this long for a charge.
    ///
    /// # Errors
    ///
    /// What the client says if Redis does not answer.
    pub async fn connect(url: &str, shop: &str, takes: Duration) -> Result<Self, BankError> {
        let config = ConnectionManagerConfig::new().set_response_timeout(Some(PATIENCE));
        let client = redis::Client::open(url)?;
        Ok(Self {
            takes,
            connection: client.get_connection_manager_with_config(config).await?,
            list: format!("shop:{shop}:charges"),
        })
    }
}

#[async_trait]
impl Bank for InRedis {
    async fn charge(&self, order: u64) -> Result<(), BankError> {
        tokio::time::sleep(self.takes).await;
        Ok(self.connection.clone().rpush(&self.list, order).await?)
    }

    async fn charges(&self) -> Result<Vec<u64>, BankError> {
        Ok(self.connection.clone().lrange(&self.list, 0, -1).await?)
    }
}
