//! A connection for a few questions, to somebody who says where others are: a
//! sentinel, or a node of a cluster that is asked for its map.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo};

use super::connection::Driver;
use super::errors::Place;
use super::settings::Settings;
use super::socket::dial;
use crate::backend::BackendError;
use crate::stores::address::Address;

/// The connection, and the future that does its reading and writing.
pub(super) struct Line {
    pub(super) connection: MultiplexedConnection,
    pub(super) driver: Driver,
}

impl Line {
    /// Connects and logs in. What is published goes to `hear`.
    pub(super) async fn open(
        address: &Address,
        settings: &Settings,
        place: &Place,
        hear: impl Fn(&PushInfo) + Send + Sync + 'static,
    ) -> Result<Self, BackendError> {
        let socket = dial(address, settings)
            .await
            .map_err(|error| place.no_connection(error))?;
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_push_sender(Arc::new(move |push: PushInfo| {
                hear(&push);
                Ok::<_, std::convert::Infallible>(())
            }));
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&settings.login, socket, config)
                .await
                .map_err(|error| place.unreachable(error))?;
        Ok(Self {
            connection,
            driver: Box::pin(driver),
        })
    }
}
