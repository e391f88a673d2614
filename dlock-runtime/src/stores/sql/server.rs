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
    /// What its maker calls it.
    const TITLE: &'static str;

    /// A URL.
    const EXAMPLE: &'static str;

    /// The parameters that its driver knows. It passes over others, and may log them.
    const PARAMETERS: &'static [&'static str];
}

/// Where a server listens, or has a socket.
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
        // The driver would take a part of the password for something else.
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

    /// The database of a pool of `sqlx` 0.8, with the pool's settings and what it does with each new
    /// connection (`after_connect`). The connections are others: those of the pool may be
    /// taken up by bodies that wait for a lock, while its holder needs one to give it back.
    #[must_use]
    pub fn from_pool(pool: &Pool<D::Sql>) -> Self {
        let options = (*pool.connect_options()).clone();
        Self::with(options, pool.options().clone())
    }

    /// Makes the tables if they are not there, when connecting. Off by default:
    /// a service has no right to do that as a rule. The error that says that they are
    /// missing has the SQL for those who have it.
    #[must_use]
    pub fn create_tables(mut self, create: bool) -> Self {
        self.engine.config.create_tables = create;
        self
    }

    /// How many connections at most, besides the one for PostgreSQL's messages: 4
    /// by default. Each is used for milliseconds at a time.
    /// From 1 to 1000, or it is refused at the start.
    #[must_use]
    pub fn max_connections(mut self, most: u32) -> Self {
        self.engine.config.max_connections = most;
        self
    }
}
