//! What a kind of database hands over when it was found in order.

use std::fmt;
use std::sync::Arc;

use super::driver::{Driver, News};
use super::durability::Durability;
use super::pace::Pace;
use super::script::Dialect;

/// A database that was found in order.
#[doc(hidden)]
pub struct Opened {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) dialect: &'static Dialect,
    pub(super) durability: Durability,
    pub(super) pace: Pace,
    pub(super) news: Option<News>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.driver, f)
    }
}
