//! What is particular to a kind of database.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use sqlx::Pool;

use super::errors::{Endpoint, Meaning};
use super::notifications::{Notifications, Pace};
use super::rows::{Cell, Column};
use super::script::Dialect;
use crate::backend::{BackendError, Servers};

/// A kind of database, and how to reach one.
pub trait Database: Clone + fmt::Debug + Send + Sync + 'static {
    /// What it is called in messages.
    const NAME: &'static str;

    /// Its driver.
    #[doc(hidden)]
    type Sql: sqlx::Database;

    /// What it says in its own way.
    #[doc(hidden)]
    const DIALECT: &'static Dialect;

    /// How soon a waiter's turn is looked for where no messages come.
    #[doc(hidden)]
    const PACE: Pace;

    /// How long to wait before an attempt is repeated, the first time and at most.
    #[doc(hidden)]
    const PAUSES: (Duration, Duration);

    /// It is a file: no connection to it is forgotten on the way, it runs nothing
    /// later, and a process that ends leaves files behind which closing one
    /// removes.
    #[doc(hidden)]
    const IS_FILE: bool = false;

    /// Which parameters of its URL say how connections are encrypted.
    #[doc(hidden)]
    const TLS_ADVICE: &'static str = "";

    /// What is wrong with its settings.
    #[doc(hidden)]
    fn check(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// As it is named in messages, where no password is.
    #[doc(hidden)]
    fn name(&self) -> String;

    /// Where it is, if it is not a file.
    #[doc(hidden)]
    fn servers(&self) -> Option<Servers> {
        None
    }

    /// Connections of dlock's own, made when first needed.
    #[doc(hidden)]
    fn pool(&self, request_timeout: Duration) -> Pool<Self::Sql>;

    /// Makes the tables, if dlock is to do that.
    #[doc(hidden)]
    fn schema(&self) -> Option<String>;

    /// Hears of free locks until it is dropped, from a database that tells.
    #[doc(hidden)]
    fn listen(
        &self,
        talking: &Pool<Self::Sql>,
        notifications: Notifications,
    ) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let _ = (talking, notifications);
        None
    }

    /// What an error means, if it is the database's own.
    #[doc(hidden)]
    fn meaning(error: &sqlx::Error) -> Option<Meaning>;

    /// No connection was to be had.
    #[doc(hidden)]
    fn unreachable(endpoint: &Endpoint) -> BackendError {
        BackendError::unavailable(format!(
            "{endpoint} could not be reached within {:?}; check that it runs and that the URL \
             names its host and port",
            endpoint.request_timeout
        ))
    }

    /// A script was not answered in time.
    #[doc(hidden)]
    fn silent(endpoint: &Endpoint) -> BackendError {
        BackendError::unavailable(format!(
            "{endpoint} did not answer within {:?}; check the network, or raise the request \
             timeout",
            endpoint.request_timeout
        ))
    }

    /// Runs a script, no longer than until the deadline: `None` if it was not
    /// answered by then. A database that is no server always answers.
    #[doc(hidden)]
    fn run<'a>(
        connection: &'a mut <Self::Sql as sqlx::Database>::Connection,
        script: &'a str,
        deadline: Instant,
    ) -> impl Future<Output = Option<Result<Rows<Self>, sqlx::Error>>> + Send + 'a {
        async move {
            let answer = Self::fetch(connection, script);
            tokio::time::timeout_at(deadline.into(), answer).await.ok()
        }
    }

    /// Runs a script as one message.
    #[doc(hidden)]
    fn fetch<'a>(
        connection: &'a mut <Self::Sql as sqlx::Database>::Connection,
        script: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Rows<Self>, sqlx::Error>> + Send + 'a>>;

    /// Reads a cell. The column's type is not checked: what is a number to one
    /// statement is a short one to another.
    #[doc(hidden)]
    fn cell(
        row: &<Self::Sql as sqlx::Database>::Row,
        index: usize,
        column: Column,
    ) -> Result<Cell, sqlx::Error>;
}

pub(super) type Rows<D> = Vec<<<D as Database>::Sql as sqlx::Database>::Row>;

/// The same words for each database: `sqlx` knows only the concrete types.
macro_rules! fetch_and_cell {
    () => {
        fn fetch<'a>(
            connection: &'a mut <Self::Sql as sqlx::Database>::Connection,
            script: &'a str,
        ) -> std::pin::Pin<
            Box<
                dyn Future<Output = Result<$crate::stores::sql::database::Rows<Self>, sqlx::Error>>
                    + Send
                    + 'a,
            >,
        > {
            sqlx::Executor::fetch_all(connection, sqlx::raw_sql(script))
        }

        fn cell(
            row: &<Self::Sql as sqlx::Database>::Row,
            index: usize,
            column: $crate::stores::sql::rows::Column,
        ) -> Result<$crate::stores::sql::rows::Cell, sqlx::Error> {
            use $crate::stores::sql::rows::{Cell, Column};
            Ok(match column {
                Column::Int => Cell::Int(sqlx::Row::try_get_unchecked(row, index)?),
                Column::Text => Cell::Text(sqlx::Row::try_get_unchecked(row, index)?),
            })
        }
    };
}
pub(super) use fetch_and_cell;
