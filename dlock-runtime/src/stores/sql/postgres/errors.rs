//! What PostgreSQL's errors mean, and what to do about them.

use std::sync::LazyLock;

use super::PostgresDatabase;
use crate::stores::sql::database::{Meaning, RetryPolicy};
use crate::stores::sql::errors::FOREIGN_TOKEN;
use crate::stores::sql::script::Scripts;

/// The rights that dlock's user needs.
const GRANTS: &str = "grant it what it needs: GRANT SELECT, INSERT, UPDATE, DELETE ON dlock_lock, \
                      dlock_reader, dlock_queue, dlock_process, dlock_meta TO …; to make the \
                      tables it needs CREATE on the schema";

static TABLES: LazyLock<String> = LazyLock::new(|| {
    format!(
        "its tables are missing: add `?create_tables=true` to the URL; or, if they are in another \
         schema, put that into the user's search_path; or run, as the user that shall own them: {}",
        Scripts::tables::<PostgresDatabase>()
    )
});

static UPGRADE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "its tables are not those of this version of dlock. If they are those of the version \
         before, add `?create_tables=true` to the URL, or run as their owner: ALTER TABLE \
         dlock_reader ADD COLUMN since BIGINT NOT NULL DEFAULT 0; ALTER TABLE dlock_lock ADD \
         COLUMN since BIGINT NOT NULL DEFAULT 0; else compare them with what it makes: {}",
        Scripts::tables::<PostgresDatabase>()
    )
});

/// Whether the session has the prepared statement, if the error says that.
pub(super) fn is_prepared(error: &sqlx::Error) -> Option<bool> {
    match &*error.as_database_error()?.code()? {
        // There is no such statement.
        "26000" => Some(false),
        // There is one of this name already.
        "42P05" => Some(true),
        _ => None,
    }
}

/// By the code of the error: <https://www.postgresql.org/docs/current/errcodes-appendix.html>
pub(super) fn meaning(error: &sqlx::Error) -> Option<Meaning> {
    use RetryPolicy::{Again, Kept, ReadOnly, Reconnect, Stop};
    let sqlx::Error::Database(error) = error else {
        return None;
    };
    let code = error.code()?;
    Some(match &*code {
        "42P01" => Meaning::config(&TABLES),
        "42701" | "42703" | "42804" | "42883" | "42P10" => Meaning::config(&UPGRADE),
        "42501" => Meaning::denied(GRANTS),
        "28P01" | "28000" => {
            Meaning::config("check the user and password in the URL, and the server's pg_hba.conf")
        }
        "3D000" => Meaning::config("the URL names a database that it does not have"),
        "3F000" => Meaning::config("its search_path names a schema that it does not have"),
        "25006" => Meaning::unavailable(
            ReadOnly,
            "it is read-only, as a standby is; name the primary in the URL",
        ),
        "22003" => Meaning::config(FOREIGN_TOKEN),
        "22P05" => Meaning::config(
            "its encoding has no such character as is in the key; create a database with \
             ENCODING 'UTF8'",
        ),
        "53100" => Meaning::unavailable(Stop, "its disk is full; make room"),
        // A wait for a row or a statement took too long.
        "57014" | "55P03" => Meaning::unavailable(
            Kept,
            "somebody keeps a row or a table of dlock's locked; see pg_stat_activity",
        ),
        "57P01" | "57P02" => Meaning::unavailable(Reconnect, "it is stopping"),
        // A serialization failure (40001), or two sessions inserted the same row (23505).
        "40001" | "23505" => Meaning::unavailable(Again, "see its log"),
        // Deadlock.
        "40P01" => Meaning::unavailable(Kept, "see its log"),
        // An idle session was ended (57P05), or a pooler has lost its server (58000).
        "57P05" | "58000" => Meaning::unavailable(Reconnect, "see its log"),
        code if code.starts_with("08") => Meaning::unavailable(Reconnect, "see its log"),
        _ => Meaning::unavailable(Stop, "see its log"),
    })
}
