//! The settings of a database on a server.

use std::str::FromStr;

use sqlx::Pool;
use sqlx::pool::PoolOptions;

use super::Sql;
use super::database::Options;
use super::tables::Notifies;
use crate::backend::{BackendError, BackendErrorKind};

/// A database on a server, with a URL that `sqlx` reads.
pub trait Server: Notifies {
    /// What its maker calls it.
    #[doc(hidden)]
    const TITLE: &'static str;

    /// A URL.
    #[doc(hidden)]
    const EXAMPLE: &'static str;
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
        let (mut base, mut create_tables) = (url.to_owned(), false);
        if let Some((address, query)) = url.split_once('?') {
            base = address.to_owned();
            let mut mark = '?';
            for pair in query.split('&') {
                match pair.strip_prefix("create_tables=") {
                    Some("true") => create_tables = true,
                    Some("false") => create_tables = false,
                    Some(_) => {
                        return invalid("`create_tables` in the URL is `true` or `false`".into());
                    }
                    None => {
                        base.push(mark);
                        base.push_str(pair);
                        mark = '&';
                    }
                }
            }
        }
        match Options::<D>::from_str(&base) {
            Ok(options) => Ok(Self::with(options, PoolOptions::new()).create_tables(create_tables)),
            Err(_) => invalid(format!(
                "not a URL of {}; write {}, and what is special in the password percent-encoded",
                D::TITLE,
                D::EXAMPLE
            )),
        }
    }

    /// The database of a pool, with the pool's settings and hooks. The
    /// connections are others: those of the pool may be taken up by bodies that
    /// wait for a lock, while its holder needs one to give it back.
    #[must_use]
    pub fn from_pool(pool: &Pool<D::Sql>) -> Self {
        let options = (*pool.connect_options()).clone();
        Self::with(options, pool.options().clone())
    }

    /// Makes the tables if they are not there, when connecting. Off by default:
    /// a service has no right to do that as a rule, and `docs/stores/sql.md` has
    /// the SQL for those who have it.
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
