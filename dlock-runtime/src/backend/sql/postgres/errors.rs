//! What PostgreSQL's errors mean, and what to do about them.

use crate::backend::sql::pooled::{Failure, Place};
use crate::backend::{BackendError, BackendErrorKind};

/// What dlock's user needs.
const GRANTS: &str = "grant it what it needs: GRANT SELECT, INSERT, UPDATE, DELETE ON dlock_lock, \
                      dlock_reader, dlock_queue, dlock_process, dlock_meta TO …; to make the \
                      tables it needs CREATE on the schema";

const TABLES: &str = "its tables are missing: run the SQL of docs/stores/sql.md as their owner, or \
                      add `?create_tables=true` to the URL; if they are in another schema, put \
                      that into the user's search_path";

/// What an attempt can do after an error.
enum Remedy {
    /// Nothing.
    GiveUp,
    /// The transaction was undone: again.
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
    code_of(error).is_some_and(|code| matches!(remedy(&code), Remedy::Reconnect))
}

fn code_of(error: &sqlx::Error) -> Option<String> {
    match error {
        sqlx::Error::Database(error) => error.code().map(|code| code.into_owned()),
        _ => None,
    }
}

/// https://www.postgresql.org/docs/current/errcodes-appendix.html
fn remedy(code: &str) -> Remedy {
    match code {
        // Serialization; two that make the same row.
        "40001" | "23505" => Remedy::Again,
        // Deadlock, timeouts of a lock or a statement.
        "40P01" | "55P03" | "57014" => Remedy::Kept,
        // A server that shuts down, starts, or follows another: a connection
        // made anew may lead to the one to write to.
        "25006" | "57P01" | "57P02" | "57P03" | "57P05" => Remedy::Reconnect,
        // A pooler whose server has gone.
        "08P01" | "58000" => Remedy::Reconnect,
        _ if code.starts_with("08") => Remedy::Reconnect,
        _ => Remedy::GiveUp,
    }
}

pub(super) fn judge(place: &Place, error: sqlx::Error) -> Failure {
    use BackendErrorKind::{Config, Unavailable};
    let Some(code) = code_of(&error) else {
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
                    format!("{place}: {error}; see `sslmode` and `sslrootcert` in the URL"),
                );
                Failure::Refused(refused.with_source(error))
            }
            _ => {
                let refused = BackendError::unavailable(format!("{place}: {error}"));
                Failure::Refused(refused.with_source(error))
            }
        };
    };
    let (kind, advice) = match code.as_str() {
        "42P01" => (Config, TABLES),
        "42703" | "42804" | "42883" | "42P10" => (
            Config,
            "its tables are not those of this version of dlock; compare them with \
             docs/stores/sql.md",
        ),
        "42501" => (Config, GRANTS),
        "28P01" | "28000" => (
            Config,
            "check the user and password in the URL, and the server's pg_hba.conf",
        ),
        "3D000" => (Config, "the URL names a database that it does not have"),
        "3F000" => (
            Config,
            "its search_path names a schema that it does not have",
        ),
        "25006" => (
            Unavailable,
            "it is read-only, as a standby is; name the primary in the URL",
        ),
        "53100" => (Unavailable, "its disk is full; make room"),
        "53300" => (
            Unavailable,
            "raise its max_connections, or lower those of its clients",
        ),
        "57014" | "55P03" => (
            Unavailable,
            "somebody keeps a row or a table of dlock's locked; see pg_stat_activity",
        ),
        "57P01" | "57P02" | "57P03" => (Unavailable, "it is starting or stopping"),
        _ => (Unavailable, "see its log"),
    };
    let said = error.to_string();
    let outcome = remedy(&code);
    let error = BackendError::new(kind, format!("{place}: {said}; {advice}")).with_source(error);
    match outcome {
        Remedy::GiveUp => Failure::Refused(error),
        Remedy::Again => Failure::Undone(error),
        Remedy::Kept => Failure::Kept(error),
        Remedy::Reconnect => Failure::Broken(error),
    }
}
