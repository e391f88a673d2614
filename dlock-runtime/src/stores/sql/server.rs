//! The settings of a database on a server.

use std::path::PathBuf;
use std::str::FromStr;

use sqlx::Pool;
use sqlx::pool::PoolOptions;

use super::Sql;
use super::database::{Location, Options};
use super::tables::Notifies;
use crate::backend::{BackendError, BackendErrorKind};
use crate::key::Shown;
use crate::stores::address::shown;

/// A database on a server, with a URL that `sqlx` reads.
pub trait Server: Notifies {
    /// Its name, as its maker writes it.
    const TITLE: &'static str;

    /// An example of its URL, for messages.
    const EXAMPLE: &'static str;

    /// The parameters that its driver knows. The driver ignores others, and may log them.
    const PARAMETERS: &'static [&'static str];
}

/// The location of a server with a port or a Unix socket.
pub(super) fn location(
    host: &str,
    port: u16,
    socket: Option<&PathBuf>,
    database: &str,
) -> Location {
    let address = shown(host, port);
    let place = socket.map_or_else(|| address.clone(), |path| path.display().to_string());
    let (place, database) = (Shown(&place), Shown(database));
    let is_connected_to = socket.is_none() && !host.starts_with('/');
    Location {
        name: format!("at {place}, database `{database}`"),
        address: is_connected_to.then_some(address),
    }
}

impl<D: Server> Sql<D> {
    /// The database at `postgres://[user[:password]@]host[:port]/database` or
    /// `mysql://…`, with the parameters that `sqlx` knows (`?sslmode=…`, `?ssl-mode=…`),
    /// and `?create_tables=true`. Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood. The message never holds a part of it.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let invalid = |what| Err(BackendError::new(BackendErrorKind::Config, what));
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let (_, behind) = address.split_once("://").unwrap_or(("", address));
        let path = behind.split_once('/').map_or("", |(_, path)| path);
        // The driver would take a part of such a password for the host or the path.
        if url.contains('#') || path.contains('@') {
            return invalid(
                "in a user or password, percent-encode characters such as / # ? @ and :".into(),
            );
        }
        let mut create_tables = false;
        let mut of_sqlx = Vec::new();
        for pair in query.split('&') {
            match pair.strip_prefix("create_tables=") {
                Some("true") => create_tables = true,
                Some("false") => create_tables = false,
                Some(_) => {
                    return invalid("`create_tables` in the URL is `true` or `false`".into());
                }
                None => {
                    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
                    let name = if name.starts_with("options[") {
                        "options"
                    } else {
                        name
                    };
                    if !pair.is_empty() && !D::PARAMETERS.contains(&name) {
                        return invalid(format!(
                            "its URL has an unknown parameter; there are create_tables, {}; of \
                             every store, `Config` reads token_floor=N",
                            D::PARAMETERS.join(", ")
                        ));
                    }
                    of_sqlx.push(pair);
                }
            }
        }
        match Options::<D>::from_str(&format!("{address}?{}", of_sqlx.join("&"))) {
            Ok(options) => Ok(Self::with(options, PoolOptions::new()).create_tables(create_tables)),
            Err(_) => invalid(format!(
                "not a URL of {}; write {}, and what is special in the password percent-encoded",
                D::TITLE,
                D::EXAMPLE
            )),
        }
    }

    /// The database of a pool of `sqlx` 0.8, with the pool's settings and what it does with each
    /// new connection (`after_connect`). dlock opens connections of its own: those of the pool may
    /// all be in use by bodies that wait for a lock, while its holder needs one to give the lock
    /// back.
    #[must_use]
    pub fn from_pool(pool: &Pool<D::Sql>) -> Self {
        let options = (*pool.connect_options()).clone();
        Self::with(options, pool.options().clone())
    }

    /// Creates missing tables when connecting. Off by default, since a service usually has no right
    /// to do that. The error about missing tables shows the SQL for somebody who has.
    #[must_use]
    pub fn create_tables(mut self, create: bool) -> Self {
        self.engine.config.create_tables = create;
        self
    }

    /// The most connections, besides the one for PostgreSQL's notifications: 4 by default. Each is
    /// used for milliseconds at a time. One of several is kept for renewals: with two, a call that waits
    /// for a row that another session keeps locked holds up the calls for all other locks. A number
    /// outside 1 to 1000 is refused at the start.
    #[must_use]
    pub fn max_connections(mut self, most: u32) -> Self {
        self.engine.config.max_connections = most;
        self
    }
}
