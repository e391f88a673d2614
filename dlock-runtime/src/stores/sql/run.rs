//! Runs scripts and statements over the connections.

use std::time::Instant;

use super::connections::{Connections, Priority, Taken};
use super::database::{Database, RetryPolicy, Row};
use super::errors::Failed;
use super::work::Work;
use crate::store::Cause;

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// When the script was sent.
    pub(super) sent_at: Instant,
}

impl<D: Database> Taken<'_, D> {
    async fn does(&mut self, work: Work<'_>) -> Result<Vec<Row>, sqlx::Error> {
        match work {
            Work::Script(script, columns) => D::run(self.connection(), script, columns).await,
            Work::Quick(what, statement, args) => {
                let (connection, is_prepared) = self.for_statement(what);
                D::quick(connection, what, statement, args, is_prepared).await
            }
        }
    }
}

impl<D: Database> Connections<D> {
    /// Runs a script, or a statement.
    ///
    /// Must not be dropped before it ends: on a file, what has begun would go on.
    pub(super) async fn run(
        &self,
        work: Work<'_>,
        priority: Priority,
        deadline: Instant,
    ) -> Result<Answer, Failed> {
        let mut taken = self.take(priority, deadline).await?;
        let sent_at = Instant::now();
        let run = taken.does(work);
        let answer = if D::IS_FILE {
            // A script that is given up in the middle would leave its transaction open.
            Some(run.await)
        } else {
            tokio::time::timeout_at(deadline.into(), run).await.ok()
        };
        match answer {
            Some(Ok(rows)) => {
                self.give_back(taken).await;
                Ok(Answer { rows, sent_at })
            }
            Some(Err(error)) => {
                let is_told = matches!(error, sqlx::Error::Database(_));
                let failed = self.endpoint.failed::<D>(error, sent_at);
                let is_quick = matches!(work, Work::Quick(..));
                if is_quick && is_told && failed.retry != RetryPolicy::Reconnect {
                    // A statement that fails leaves no transaction open.
                    self.give_back(taken).await;
                } else if is_told && failed.retry != RetryPolicy::Reconnect {
                    self.give_back_clear(taken, deadline).await;
                } else {
                    // What has ended this connection has usually ended the others too.
                    drop(taken);
                    self.drop_idle();
                }
                Err(failed)
            }
            // The connection is closed, since a late answer would be taken for that of the next
            // script.
            None => Err(Failed::new(RetryPolicy::Reconnect, Cause::Silence, sent_at)),
        }
    }

    /// Takes back a connection whose script failed, and may have left its transaction open.
    async fn give_back_clear(&self, mut taken: Taken<'_, D>, deadline: Instant) {
        let rollback = D::run(taken.connection(), "ROLLBACK", 0);
        let rolled_back = tokio::time::timeout_at(deadline.into(), rollback).await;
        // If the database answers with an error, there was no open transaction.
        if let Ok(Ok(_) | Err(sqlx::Error::Database(_))) = rolled_back {
            self.give_back(taken).await;
        }
    }
}
