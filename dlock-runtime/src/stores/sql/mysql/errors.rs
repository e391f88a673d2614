//! What the errors of MySQL and MariaDB mean, and what to do about them.

use std::sync::LazyLock;

use sqlx::mysql::MySqlDatabaseError;

use super::MySqlDatabase;
use crate::stores::sql::database::{Database as _, Meaning, RetryPolicy};
use crate::stores::sql::errors::FOREIGN_TOKEN;
use crate::stores::sql::script::Scripts;

const GRANTS: &str = "grant it what it needs: GRANT SELECT, INSERT, UPDATE, DELETE ON … TO …, on \
                      each of dlock_lock, dlock_reader, dlock_queue, dlock_process and \
                      dlock_meta; to make them it needs CREATE";

const NO_DATABASE: &str = "it may not use the database in the URL: check its name, or grant it what \
                           it needs: GRANT SELECT, INSERT, UPDATE, DELETE ON … TO …, and CREATE to \
                           make the tables";

static TABLES: LazyLock<String> = LazyLock::new(|| {
    format!(
        "its tables are missing: add `?create_tables=true` to the URL, or run: {}",
        Scripts::tables::<MySqlDatabase>()
    )
});

static UPGRADE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "its tables are not those of this version of dlock. If they are those of the version \
         before, add `?create_tables=true` to the URL, or run: ALTER TABLE dlock_queue MODIFY \
         owner VARBINARY(255) NOT NULL; ALTER TABLE dlock_reader MODIFY owner VARBINARY(255) NOT \
         NULL, ADD COLUMN since BIGINT NOT NULL DEFAULT 0; ALTER TABLE dlock_lock MODIFY owner \
         VARBINARY(255) NOT NULL, ADD COLUMN since BIGINT NOT NULL DEFAULT 0; else compare them \
         with what it makes: {}",
        Scripts::tables::<MySqlDatabase>()
    )
});

const READ_ONLY: &str = "it is read-only, as a replica is; name the primary in the URL";

/// By the number of the error:
/// <https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html>
pub(super) fn meaning(error: &sqlx::Error) -> Option<Meaning> {
    use RetryPolicy::{Again, Kept, OutOfService, ReadOnly, Reconnect, Stop};
    let sqlx::Error::Database(error) = error else {
        return None;
    };
    let error = error.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(match error.number() {
        1146 => Meaning::config(&TABLES),
        1054 | 1060 | 1136 | 1364 | 1366 | 1406 => Meaning::config(&UPGRADE),
        1142 | 1143 | 1370 => Meaning::denied(GRANTS),
        // The login has succeeded, so user and password are right.
        1044 => Meaning::denied(NO_DATABASE),
        1045 | 1698 => Meaning::config("check the user and password in the URL, and its rights"),
        1130 => Meaning::config("create the user in the URL for the host of this process"),
        // No encryption, though the server or the user demands it.
        3159 => Meaning::config(MySqlDatabase::TLS_ADVICE),
        3118 | 4151 => Meaning::config("unlock the account: ALTER USER … ACCOUNT UNLOCK"),
        1820 | 1862 => Meaning::config("give the user a new password, and put it into the URL"),
        1298 => Meaning::config("correct `timezone` in the URL, or leave it out"),
        1046 => Meaning::config("the URL names no database; write mysql://…/database"),
        1049 => Meaning::config("the URL names a database that it does not have"),
        1665 => Meaning::config("its binlog_format is STATEMENT; dlock needs MIXED or ROW"),
        // A node of Galera that is not with its cluster has no data to rely on. It refuses to read,
        // too.
        1047 => Meaning::unavailable(OutOfService, "see its wsrep_cluster_status"),
        1290 | 1836 => Meaning::unavailable(ReadOnly, READ_ONLY),
        1792 => Meaning::unavailable(Stop, READ_ONLY),
        1264 | 1690 => Meaning::config(FOREIGN_TOKEN),
        1021 | 1114 => Meaning::unavailable(Stop, "its disk is full; make room"),
        1040 | 1203 => Meaning::unavailable(
            Stop,
            "raise its max_connections, or lower those of its clients",
        ),
        // A wait for a row (1205) or a statement (1969, 3024) took too long.
        1205 | 1969 | 3024 => Meaning::unavailable(
            Kept,
            "somebody keeps a row or a table of dlock's locked; see SHOW PROCESSLIST",
        ),
        1053 | 1927 => Meaning::unavailable(Reconnect, "it is starting or stopping"),
        // The row has changed since it was read (1020), or two sessions inserted the same row
        // (1062).
        1020 | 1062 => Meaning::unavailable(Again, "see its log"),
        // Deadlock.
        1213 => Meaning::unavailable(Kept, "see its log"),
        // The server has ended the statement or the connection.
        1317 | 3100 | 4031 => Meaning::unavailable(Reconnect, "see its log"),
        _ => Meaning::unavailable(Stop, "see its log"),
    })
}
