//! What the errors of MySQL and MariaDB mean, and what to do about them.

use crate::backend::sql::pooled::{Failure, Place};
use crate::backend::{BackendError, BackendErrorKind};
use sqlx::mysql::MySqlDatabaseError;

const GRANTS: &str = "grant it what it needs: GRANT SELECT, INSERT, UPDATE, DELETE ON … TO …, on \
                      each of the five tables of docs/stores/sql.md; to make them it needs CREATE";

const TABLES: &str = "its tables are missing: run the SQL of docs/stores/sql.md, or add \
                      `?create_tables=true` to the URL";

enum Remedy {
    /// Nothing.
    GiveUp,
    /// The transaction is to be undone: again.
    Again,
    /// The same, as somebody keeps a row.
    Kept,
    /// The connection has ended.
    Reconnect,
}

/// A script was not answered.
pub(super) fn silent(place: &Place) -> BackendError {
    BackendError::unavailable(format!(
        "{place} did not answer within {:?}; check the network, or raise the request timeout",
        place.request_timeout
    ))
}

/// Whether the connection is of no more use.
pub(super) fn is_over(error: &sqlx::Error) -> bool {
    number_of(error).is_some_and(|number| matches!(remedy(number), Remedy::Reconnect))
}

fn number_of(error: &sqlx::Error) -> Option<u16> {
    match error {
        sqlx::Error::Database(error) => error
            .try_downcast_ref::<MySqlDatabaseError>()
            .map(MySqlDatabaseError::number),
        _ => None,
    }
}

/// https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html
fn remedy(number: u16) -> Remedy {
    match number {
        // A row that has changed since it was read, two that make one row.
        1020 | 1062 => Remedy::Again,
        // Deadlock, a row that is waited for too long, a statement that took too
        // long.
        1213 | 1205 | 1969 | 3024 => Remedy::Kept,
        // It is shutting down, has killed the connection, or has become
        // read-only: another connection may lead to the one to write to.
        1053 | 1927 | 1317 | 1290 | 1836 | 3100 | 4031 => Remedy::Reconnect,
        _ => Remedy::GiveUp,
    }
}

pub(super) fn judge(place: &Place, error: sqlx::Error) -> Failure {
    use BackendErrorKind::{Config, Unavailable};
    let Some(number) = number_of(&error) else {
        return match error {
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
                let said = error.to_string();
                let unreachable = BackendError::unavailable(format!(
                    "{place}: {said}; check that it runs and that the URL names its host and port"
                ));
                Failure::Broken(unreachable.with_source(error))
            }
            sqlx::Error::Tls(_) => {
                let refused = BackendError::new(
                    Config,
                    format!("{place}: {error}; see `ssl-mode` and `ssl-ca` in the URL"),
                );
                Failure::Refused(refused.with_source(error))
            }
            _ => {
                let refused = BackendError::unavailable(format!("{place}: {error}"));
                Failure::Refused(refused.with_source(error))
            }
        };
    };
    let (kind, advice) = match number {
        1146 => (Config, TABLES),
        1054 | 1136 | 1364 | 1366 => (
            Config,
            "its tables are not those of this version of dlock; compare them with \
             docs/stores/sql.md",
        ),
        1142 | 1143 | 1370 => (Config, GRANTS),
        1044 | 1045 | 1698 => (
            Config,
            "check the user and password in the URL, and its rights",
        ),
        1046 => (
            Config,
            "the URL names no database; write mysql://…/database",
        ),
        1049 => (Config, "the URL names a database that it does not have"),
        1290 | 1792 | 1836 => (
            Unavailable,
            "it is read-only, as a replica is; name the primary in the URL",
        ),
        1021 | 1114 => (Unavailable, "its disk is full; make room"),
        1040 | 1203 => (
            Unavailable,
            "raise its max_connections, or lower those of its clients",
        ),
        1205 | 1969 | 3024 => (
            Unavailable,
            "somebody keeps a row or a table of dlock's locked; see SHOW PROCESSLIST",
        ),
        1053 | 1927 => (Unavailable, "it is starting or stopping"),
        1665 => (
            Config,
            "its binlog_format is STATEMENT; dlock needs MIXED or ROW",
        ),
        _ => (Unavailable, "see its log"),
    };
    let said = error.to_string();
    let error = BackendError::new(kind, format!("{place}: {said}; {advice}")).with_source(error);
    match remedy(number) {
        Remedy::GiveUp => Failure::Refused(error),
        Remedy::Again => Failure::Undone(error),
        Remedy::Kept => Failure::Kept(error),
        Remedy::Reconnect => Failure::Broken(error),
    }
}
