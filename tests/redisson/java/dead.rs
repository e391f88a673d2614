//! What the dead leave behind ends in time: by the server's clock, which no load moves, and
//! by what it was to last when they died.

use std::time::Duration;

use crate::support::redis::RedisServer;
use crate::support::wait::until;

/// Somebody is dead, since this moment at most.
pub(crate) struct Dead<'a> {
    server: &'a RedisServer,
    since: u64,
}

/// What was sent by one who died may be done behind its death.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// When a key is to end, in ms since 1970; 0 if it is not there, or is a hash that has no
/// such field.
const ENDS: &str = "\
    local left = redis.call('PTTL', KEYS[1]) \
    if left == -2 or ARGV[1] and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end \
    local time = redis.call('TIME') \
    return time[1] * 1000 + math.floor(time[2] / 1000) + left";

impl<'a> Dead<'a> {
    /// It is dead already.
    pub(crate) async fn now(server: &'a RedisServer) -> Self {
        let since = now(server).await;
        Self { server, since }
    }

    /// Waits until it has no lock any more, which nobody keeps for longer than its ttl.
    pub(crate) async fn leaves(&self, key: &str, field: &str, ttl: Duration) {
        let ends = async || {
            let ends = ["EVAL", ENDS, "1", key, field];
            self.server.command::<u64>(&ends).await
        };
        self.ends_within(ttl, ends).await;
    }

    /// Waits until it has no place in the queue of a fair lock.
    pub(crate) async fn leaves_the_queue(&self, key: &str, field: &str, lasts: Duration) {
        let places = format!("redisson_lock_timeout:{{{key}}}");
        let ends = async || {
            let score = ["ZSCORE", &places, field];
            let score: Option<f64> = self.server.command(&score).await;
            score.map_or(0, |ms| ms as u64)
        };
        self.ends_within(lasts, ends).await;
    }

    /// Waits until there is no such key any more.
    pub(crate) async fn leaves_key(&self, key: &str, ttl: Duration) {
        let ends = async || self.end_of(key).await;
        self.ends_within(ttl, ends).await;
    }

    /// Waits until it was to last for longer than the dead could have wanted.
    pub(crate) async fn is_kept(&self, key: &str, ttl: Duration) {
        let latest = self.latest(ttl);
        let ends = async || self.end_of(key).await;
        until("somebody keeps it", ends, |&ends| ends > latest).await;
    }

    /// When it is to end; 0 if it is not there.
    async fn end_of(&self, key: &str) -> u64 {
        self.server.command(&["EVAL", ENDS, "1", key]).await
    }

    /// In ms since 1970, as the server counts.
    fn latest(&self, limit: Duration) -> u64 {
        let limit = (limit + ON_ITS_WAY).as_millis();
        self.since + u64::try_from(limit).expect("a short time")
    }

    async fn ends_within(&self, limit: Duration, mut ends: impl AsyncFnMut() -> u64) {
        let latest = self.latest(limit);
        let in_time = async || {
            let ends = ends().await;
            assert!(ends <= latest, "{} ms too late", ends - latest);
            ends
        };
        until("what the dead had has ended", in_time, |&ends| ends == 0).await;
    }
}

async fn now(server: &RedisServer) -> u64 {
    let (seconds, micros): (u64, u64) = server.command(&["TIME"]).await;
    // As long as the millisecond lasts.
    seconds * 1000 + micros / 1000 + 1
}

/// Who holds the lock, as it stands in the hash.
pub(crate) async fn holder(server: &RedisServer, key: &str) -> String {
    let mut fields: Vec<String> = server.command(&["HKEYS", key]).await;
    fields.retain(|field| field != "mode");
    let [field] = &fields[..] else {
        panic!("{fields:?}");
    };
    field.clone()
}
