//! Why a command has no answer.

use redis::RedisError;

/// No answer came. Whether the server has run the command, or is yet to run
/// it, nobody knows.
#[derive(Clone, Debug)]
pub(super) enum Lost {
    /// The connection broke.
    Broken(RedisError),
    /// Nothing came for longer than an answer may take: it seems to be dead.
    Silent,
    /// The caller's time has passed. The connection may be as good as any.
    TooLate,
}
