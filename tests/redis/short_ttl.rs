//! A ttl that leaves no time for a second attempt to renew is told, and once.

use std::time::Duration;

use dlock::Config;

use crate::support::alone::alone_with_its_log;
use crate::support::locks::{connect, held};
use crate::support::redis::RedisServer;

const TOLD: &str = "three request timeouts";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_ttl_shorter_than_three_request_timeouts_is_told_once() {
    let name = "short_ttl::a_ttl_shorter_than_three_request_timeouts_is_told_once";
    alone_with_its_log(name, async |log| {
        let server = RedisServer::start().await;
        let config = |ttl| {
            let config = Config::from_url(&server.url()).expect("a valid URL");
            config.request_timeout(seconds(5)).ttl(seconds(ttl))
        };
        let told = || log.lines_with(TOLD);

        let long = connect(config(15)).await;
        drop(held(long.lock("key")).await);
        drop(held(long.lock("key").ttl(seconds(60))).await);
        assert!(told().is_empty(), "{:?}", told());
        for _ in 0..3 {
            drop(held(long.lock("key").ttl(seconds(14)).template("stock:<sku>")).await);
        }
        let lines = told();
        let [line] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        for word in ["WARN dlock", "stock:<sku>", "14s", "5s", "15s"] {
            assert!(line.contains(word), "{word:?} is missing from: {line}");
        }

        let short = connect(config(10)).await;
        assert_eq!(told().len(), 2, "at the connect");
        drop(held(short.lock("key")).await);
        assert_eq!(told().len(), 2);
        // Another one is another mistake.
        for ttl in [9, 8] {
            drop(held(short.lock("key").ttl(seconds(ttl))).await);
        }
        assert_eq!(told().len(), 3, "{:?}", told());
    });
}
