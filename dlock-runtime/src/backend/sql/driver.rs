//! What the protocol needs of a database.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::backend::BackendError;

/// A database that runs scripts.
#[async_trait]
pub(super) trait Driver: fmt::Debug + Send + Sync + 'static {
    /// Runs a script to its end, as one transaction that is repeated when it
    /// has to be, until the deadline.
    ///
    /// Not to be dropped in between: it runs in tasks of the manager.
    async fn run(
        &self,
        script: &str,
        columns: &'static [Column],
        deadline: Instant,
    ) -> Result<Answer, BackendError>;

    /// The same for leases that run out otherwise: before all others of this
    /// process, and without waiting for who keeps a row that the script needs.
    async fn run_in_time(
        &self,
        script: &str,
        columns: &'static [Column],
        deadline: Instant,
    ) -> Result<Outcome, BackendError>;

    /// What it has not answered by the time that it was given up, it never runs
    /// later.
    fn always_answers(&self) -> bool;

    /// Closes what is not to be open when the process ends, until it is needed
    /// again.
    async fn rest(&self);

    /// Ends every connection.
    async fn close(&self);
}

/// The messages to the waiters of a process, from a database that sends any.
pub(super) struct News {
    pub(super) messages: mpsc::UnboundedReceiver<Message>,
    /// Whether they come through at present.
    pub(super) come: Arc<AtomicBool>,
}

/// What a waiter may be told.
#[cfg_attr(
    not(feature = "postgres"),
    expect(dead_code, reason = "the others tell nothing")
)]
pub(super) enum Message {
    /// The lock on this key has become free.
    Free(String),
    /// Messages may have been missed.
    Missed,
}

/// What a script answers with.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// When the attempt that was answered was sent.
    pub(super) sent_at: Instant,
    /// An earlier attempt was not answered, and may have been run.
    pub(super) repeated: bool,
}

/// What becomes of a script that does not wait.
#[derive(Debug)]
pub(super) enum Outcome {
    Answered(Answer),
    /// Somebody keeps a row that it needs: it was undone.
    Kept(BackendError),
}

/// The type of a column of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Text,
    Int,
}

#[derive(Clone, Debug)]
pub(super) enum Cell {
    Text(String),
    Int(i64),
}

#[derive(Clone, Debug)]
pub(super) struct Row(pub(super) Vec<Cell>);

impl Row {
    /// The number in a column that is one.
    pub(super) fn int(&self, column: usize) -> i64 {
        match self.0.get(column) {
            Some(Cell::Int(number)) => *number,
            _ => 0,
        }
    }

    /// The text in a column that is one.
    pub(super) fn text(&self, column: usize) -> &str {
        match self.0.get(column) {
            Some(Cell::Text(text)) => text,
            _ => "",
        }
    }
}
