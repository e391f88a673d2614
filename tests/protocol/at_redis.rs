//! One Redis server; one that is a cluster by itself; and one that votes.

use dlock::backend::redis::{Cluster, Redis, Redlock};
use std::marker::PhantomData;

use dlock::bare::{self, Bare};
use dlock::store::Store;
use redis::aio::MultiplexedConnection;

use crate::rules::{CLUSTER, REDIS, Rules, VOTER};
use crate::run::{Kept, KeptHolder, Scene};
use crate::sequence::KEYS;
use crate::stores::{AtStore, Clock, Hears};
use crate::support::cluster::LONG;
use crate::support::redis::{RedisServer, Setup};
use crate::support::wait::until;

/// Every time that is kept, moved by what is missing of `ARGV[2]` since `ARGV[1]`, by the
/// server's clock. Returns that, and all keys with what they hold and how long.
const MOVE: &str = "#!lua flags=allow-cross-slot-keys
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local shift = math.max(ARGV[2] - (now - ARGV[1]), 0)
    local found = {}
    for _, key in ipairs(redis.call('KEYS', '*')) do
        local kind = redis.call('TYPE', key).ok
        if kind == 'zset' then
            local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
            for index = 1, #all, 2 do
                redis.call('ZADD', key, string.format('%.0f', all[index + 1] - shift), all[index])
            end
        end
        local ends = redis.call('PEXPIRETIME', key)
        local left = ends
        if ends >= 0 then
            left = ends - shift - now
            if left > 0 then
                redis.call('PEXPIREAT', key, string.format('%.0f', ends - shift))
            else
                redis.call('DEL', key)
            end
        end
        if redis.call('EXISTS', key) == 1 then
            local holds = kind == 'string' and { redis.call('GET', key) }
                or kind == 'list' and redis.call('LRANGE', key, 0, -1)
                or redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
            found[#found + 1] = { key, left, holds }
        end
    end
    return { now, found }";

pub(crate) struct AtRedis<S, O> {
    server: RedisServer,
    connection: MultiplexedConnection,
    rules: Rules,
    opens: O,
    clock: Clock,
    of: PhantomData<S>,
}

/// One server that has all locks.
pub(crate) async fn server() -> impl Scene {
    let server = RedisServer::start().await;
    AtRedis::new(server, REDIS, async |server: &RedisServer| {
        let redis = Redis::from_url(&server.url()).expect("a valid URL");
        bare::open(redis).await.expect("our own server")
    })
    .await
}

/// One that has all slots of a cluster.
pub(crate) async fn cluster() -> impl Scene {
    let server = Setup::default().in_cluster(LONG).start().await;
    let slots = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    server.command::<()>(&slots).await;
    let state = async || server.command::<String>(&["CLUSTER", "INFO"]).await;
    until("it is a cluster", state, |state| {
        state.contains("cluster_state:ok")
    })
    .await;
    AtRedis::new(server, CLUSTER, async |server: &RedisServer| {
        let url = format!("redis+cluster://127.0.0.1:{}", server.port());
        let cluster = Cluster::from_url(&url).expect("a valid URL");
        let owner = cluster.owner().expect("one owner for each slot");
        bare::open(owner).await.expect("our own cluster")
    })
    .await
}

/// One that votes.
pub(crate) async fn voter() -> impl Scene {
    let server = RedisServer::start().await;
    AtRedis::new(server, VOTER, async |server: &RedisServer| {
        // The others are not asked.
        let url = format!(
            "redis+redlock://127.0.0.1:{},127.0.0.1:1,127.0.0.1:2",
            server.port()
        );
        let redlock = Redlock::from_url(&url).expect("a valid URL");
        let voter = redlock.voter().expect("the first");
        bare::open(voter).await.expect("our own server")
    })
    .await
}

impl<S, O> AtRedis<S, O>
where
    S: Store<Record = ()>,
    O: AsyncFnMut(&RedisServer) -> Bare<S>,
{
    async fn new(server: RedisServer, rules: Rules, opens: O) -> Self {
        Self {
            connection: server.connection().await,
            server,
            rules,
            opens,
            clock: Clock(0),
            of: PhantomData,
        }
    }

    async fn listening(&self) -> Vec<String> {
        let channels = ["PUBSUB", "CHANNELS", "dlock:wake:*"];
        self.server.command(&channels).await
    }

    /// What is there, when so much time has passed since the last look.
    async fn moved(&mut self, pass: u64) -> (i64, Vec<(String, i64, Vec<String>)>) {
        let mut command = redis::cmd("EVAL");
        command.arg(MOVE).arg(0).arg(self.clock.0).arg(pass);
        let moved = command.query_async(&mut self.connection).await;
        moved.expect("our own server")
    }
}

impl<S, O> Scene for AtRedis<S, O>
where
    S: Store<Record = ()>,
    O: AsyncFnMut(&RedisServer) -> Bare<S>,
{
    type Process = AtStore<S>;

    fn rules(&self) -> Rules {
        self.rules
    }

    async fn open(&mut self) -> AtStore<S> {
        let before = self.listening().await;
        let bare = (self.opens)(&self.server).await;
        if self.rules.notices_deaths {
            let listening = async || self.listening().await;
            // Others may be closed just now.
            let is_new = |now: &Vec<String>| now.iter().any(|one| !before.contains(one));
            until("it listens", listening, is_new).await;
        }
        let hears = match self.rules.votes {
            true => Some(ends(&self.server).await),
            false => None,
        };
        AtStore { bare, hears }
    }

    async fn notices(&mut self, left: usize) {
        let listening = async || self.listening().await.len();
        until("its connections are closed", listening, |&now| now == left).await;
    }

    async fn look(&mut self, pass: u64) -> Kept {
        let (now, keys) = self.moved(pass).await;
        let late = self.clock.passes(pass, now);
        let mut kept = Kept {
            late: late.cast_unsigned(),
            ..Kept::default()
        };
        let (mut since, mut fencing) = (Vec::new(), Vec::new());
        for (name, left, holds) in &keys {
            if let Some(rest) = name.strip_prefix("dlock:since:{") {
                since.push(rest.split_once("}:").expect("a lock and an owner"));
            }
            if let Some(rest) = name.strip_prefix("dlock:fencing:{") {
                fencing.push(rest.split_once("}:").expect("a lock and an owner"));
            }
            if *left < 0 && !name.starts_with("dlock:token") {
                kept.endless.push(name.clone());
            }
            let Some(rest) = name.strip_prefix("dlock:{") else {
                continue;
            };
            let (key, part) = rest.split_once('}').expect("the name of a lock");
            let lock = kept.locks.entry(key.to_owned()).or_default();
            match part {
                ":queue" => {
                    let owner =
                        |entry: &String| entry.split(':').nth(1).unwrap_or_default().to_owned();
                    lock.queue_ends = Some(left + late);
                    lock.queue = Some(holds.iter().map(owner).collect());
                }
                ":readers" => {
                    lock.ends.push(left + late);
                    let readers = holds.chunks(2).map(|reader| {
                        holder(
                            &reader[0],
                            reader[1].parse::<i64>().expect("a time") - now + late,
                        )
                    });
                    lock.holders
                        .extend(readers.filter(|reader| reader.left > 0));
                }
                "" => {
                    let (mode, owner) = holds[0].split_once(':').expect("a lock");
                    lock.ends.push(left + late);
                    lock.read = mode == "r";
                    match mode {
                        "w" => lock.holders.push(holder(owner, left + late)),
                        "d" => lock.done = Some(holder(owner, left + late)),
                        _ => {}
                    }
                }
                _ => panic!("{name} is nothing that dlock keeps"),
            }
        }
        for (key, numbers) in fencing {
            // Of nobody who has left.
            let holders = kept.locks.get(key).map(|lock| &lock.holders[..]);
            let is_this = |holder: &KeptHolder| holder.owner.split('/').next() == Some(numbers);
            assert!(holders.unwrap_or_default().iter().any(is_this), "{numbers}");
        }
        for (key, _) in &since {
            assert!(kept.locks.contains_key(*key), "{since:?}");
        }
        for (key, lock) in &kept.locks {
            // Kept of all who are let in, and of nobody who has left.
            let is_kept = |owner: &str| {
                let (numbers, _) = owner.split_once('/').unwrap_or((owner, ""));
                since.contains(&(&**key, numbers))
            };
            let holders = lock.holders.iter();
            for holder in holders.filter(|holder| lock.read && holder.unclaimed) {
                assert!(is_kept(&holder.owner), "{since:?}: {holder:?}");
            }
            let holders = lock.holders.iter().filter(|_| lock.read);
            let known = holders.filter(|holder| is_kept(&holder.owner)).count();
            let of_it = since.iter().filter(|(of, _)| of == key).count();
            assert_eq!(known, of_it, "{since:?}: {lock:?}");
        }
        kept
    }

    async fn left(&mut self) -> Vec<String> {
        let (_, keys) = self.moved(0).await;
        let names = keys.into_iter().map(|(name, ..)| name);
        names
            .filter(|name| !name.starts_with("dlock:token"))
            .collect()
    }

    async fn wipe(&mut self) -> bool {
        for name in self.left().await {
            self.server.command::<()>(&["DEL", &name]).await;
        }
        self.clock = Clock(0);
        true
    }
}

fn holder(shown: &str, left: i64) -> KeptHolder {
    KeptHolder {
        owner: shown
            .split([';', '+', '?'])
            .next()
            .unwrap_or(shown)
            .to_owned(),
        left,
        unclaimed: shown.ends_with('?'),
    }
}

/// What is told of the ends of locks.
async fn ends(server: &RedisServer) -> Hears {
    let (tells, told) = tokio::sync::mpsc::unbounded_channel();
    let config = redis::AsyncConnectionConfig::new().set_push_sender(tells);
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url()));
    let client = client.expect("an address");
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connection.await.expect("our own server");
    for key in KEYS {
        let channel = format!("dlock:wake:dlock:{{{key}}}");
        connection.subscribe(channel).await.expect("our own server");
    }
    Hears {
        told,
        _connection: connection,
    }
}
