//! A shop over HTTP.

pub use crate::usual::*;

/// The state of the handlers.
#[derive(Clone)]
pub struct Shop {
    /// Part of each key.
    pub name: String,
}

/// What is bought.
#[derive(serde::Serialize)]
pub struct Order;

impl Shop {
    /// Cancels an order, if there is one.
    pub async fn cancel(&self, _id: u64) -> Option<Order> {
        Some(Order)
    }

    /// Takes the money for an order.
    pub async fn charge(&self, _id: u64) {}
}
