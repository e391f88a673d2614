//! What a worker process does.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dlock::{Config, FencingToken, LockError, current, distributed_lock};

use super::doers;
use super::sharers::share;
use crate::support::resource::{Section, report};
use crate::support::wait::eventually;
use crate::support::worker::{self, setting};

/// Why a body did not count.
#[derive(Debug)]
enum Failure {
    Lock(LockError),
    /// The resource has seen a newer token.
    Outdated,
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

/// The settings of a worker.
struct Contender {
    name: String,
    resource: SocketAddr,
    /// Whether its grants have tokens.
    tokens: bool,
}

/// Adds one, at a resource that offers only read and write.
async fn add_one(contender: &Contender) -> Result<(), Failure> {
    let token = current().map_or(FencingToken::NONE, |held| held.token());
    let Contender {
        name,
        resource,
        tokens,
    } = contender;
    assert_eq!(token > FencingToken::NONE, *tokens, "{token}");
    let lost = |_| Failure::Outdated;
    let section = Section::enter(*resource, name, token.into())
        .await
        .expect("the resource");
    let mut section = section.map_err(lost)?;
    let value = section.read().await.expect("the resource").map_err(lost)?;
    tokio::time::sleep(Duration::from_micros(fastrand::u64(..2_000))).await;
    section
        .write(value + 1)
        .await
        .expect("the resource")
        .map_err(lost)?;
    section.leave().await.expect("the resource").map_err(lost)?;
    Ok(())
}

#[distributed_lock(key = "counter")]
async fn add_one_or_stop(contender: &Contender) -> Result<(), Failure> {
    add_one(contender).await
}

/// A body that continues after the loss of its lease, and so writes late.
#[distributed_lock(key = "counter", on_lost = "continue")]
async fn add_one_stubbornly(contender: &Contender) -> Result<(), Failure> {
    add_one(contender).await
}

/// Runs a worker in this process.
pub fn play(role: &str, config_at: impl FnOnce(&str) -> Config) {
    let contender = || Contender {
        name: setting("NAME"),
        resource: setting("RESOURCE").parse().expect("an address"),
        tokens: setting("TOKENS") == "yes",
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let config = config_at(&setting("URL"));
        let ttl = setting("TTL").parse().expect("a number");
        let floor = worker::known("FLOOR").map_or(0, |floor| floor.parse().expect("a number"));
        let config = config.ttl(Duration::from_millis(ttl)).token_floor(floor);
        // On a busy machine it may take several attempts.
        eventually("a connection", async || {
            match dlock::init(config.clone()).await {
                Err(LockError::Unavailable { .. }) => None,
                connected => {
                    connected.expect("a connection");
                    Some(())
                }
            }
        })
        .await;
        match role {
            "contend" => contend(contender()).await,
            "share" => share().await,
            "do" => doers::play().await,
            "do one" => doers::play_one().await,
            _ => panic!("no role is called {role}"),
        }
        dlock::shutdown().await;
    });
}

/// Several tasks add one, each `ROUNDS` times, or until the test tells them to stop.
async fn contend(contender: Contender) {
    let rounds: usize = setting("ROUNDS").parse().expect("a number");
    let tasks: usize = setting("TASKS").parse().expect("a number");
    let stubborn = setting("STUBBORN") == "yes";
    let stop = PathBuf::from(setting("STOP"));
    let contender = Arc::new(contender);
    let mut adding = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let (contender, stop) = (Arc::clone(&contender), stop.clone());
        adding.spawn(async move {
            let mut added = 0;
            while added < rounds && !stop.exists() {
                let answer = if stubborn {
                    add_one_stubbornly(&contender).await
                } else {
                    add_one_or_stop(&contender).await
                };
                match answer {
                    Ok(()) => added += 1,
                    Err(failure) => {
                        let text = match failure {
                            Failure::Lock(LockError::Lost { .. }) => "lost".to_owned(),
                            Failure::Outdated => "outdated".to_owned(),
                            Failure::Lock(error) => format!("failed: {error}"),
                        };
                        report(contender.resource, &contender.name, &text)
                            .await
                            .expect("the resource");
                    }
                }
            }
        });
    }
    adding.join_all().await;
}
