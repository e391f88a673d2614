//! The service as it is run: processes that share a store, of which one is
//! killed, and which end as they should when they are told to.

use std::time::Duration;

use dlock::{Config, LockManager};
use serde_json::json;

use crate::client::{Call, Pending, call};
use crate::rush::Rush;
use crate::service::Service;
use crate::support::calm::unless_it_stands_still;
use crate::support::process::command;
use crate::support::redis::RedisServer;
use crate::support::wait::until;

/// Not to be sold out before everybody has had a turn.
const STOCK: u64 = 60;

/// Whoever has waited for the lock in vain is told of an outage, if Redis has not answered
/// in that time.
const NO_ANSWER: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_rush_on_one_copy_in_memory() {
    unless_it_stands_still(NO_ANSWER, rush_on_one_copy_in_memory).await;
}

async fn rush_on_one_copy_in_memory() {
    let mut service = Service::start("memory:", STOCK, "5").await;
    let seen = Rush::start(&[service.address], 24, 25).end().await;
    seen.nothing_broke();
    seen.was_a_rush();
    seen.adds_up(service.address, STOCK).await;
    service.process.terminate();
    service.ends_well().await;
}

#[tokio::test]
async fn a_rush_on_two_copies_on_redis() {
    unless_it_stands_still(NO_ANSWER, rush_on_two_copies_on_redis).await;
}

async fn rush_on_two_copies_on_redis() {
    let server = RedisServer::start().await;
    let mut one = Service::start(&server.url(), STOCK, "5").await;
    let mut other = Service::start(&server.url(), STOCK, "5").await;
    let seen = Rush::start(&[one.address, other.address], 24, 25)
        .end()
        .await;
    seen.nothing_broke();
    seen.was_a_rush();
    seen.adds_up(one.address, STOCK).await;
    for service in [&mut one, &mut other] {
        service.process.terminate();
        service.ends_well().await;
    }
    // What is left is the shop's.
    let left = async || {
        let mut left = server.keys().await;
        left.retain(|key| !key.starts_with("shop:mugs:") && key != "dlock:token");
        left
    };
    until("no lock is left", left, Vec::is_empty).await;
}

#[tokio::test]
async fn a_copy_that_is_killed_leaves_nothing_half_done() {
    unless_it_stands_still(NO_ANSWER, a_copy_is_killed).await;
}

async fn a_copy_is_killed() {
    let server = RedisServer::start().await;
    let mut victim = Service::start(&server.url(), STOCK, "5").await;
    let heir = Service::start(&server.url(), STOCK, "5").await;
    let rush = Rush::start(&[victim.address, heir.address], 24, 40);
    rush.has_placed(20).await;
    victim.process.kill();
    let seen = rush.end().await;
    seen.adds_up(heir.address, STOCK).await;
}

/// Also those whose client does not wait for the end.
#[tokio::test]
async fn told_to_stop_it_ends_what_it_has_begun() {
    unless_it_stands_still(NO_ANSWER, it_is_told_to_stop).await;
}

async fn it_is_told_to_stop() {
    let server = RedisServer::start().await;
    let config = Config::from_url(&server.url()).expect("a valid URL");
    let observer = LockManager::connect(config).await.expect("Redis");
    let mut copies = [
        Service::start(&server.url(), STOCK, "2000").await,
        Service::start(&server.url(), STOCK, "2000").await,
    ];
    let (answered, unanswered) = (copies[0].place().await, copies[0].place().await);
    let patient = Pending::start(copies[0].address, Call::Pay(answered));
    let impatient = Pending::start(copies[1].address, Call::Pay(unanswered));
    // The lock alone does not say so: whoever hangs up before the payment has begun
    // takes it along. The first that it does is to look at the charges.
    let looks = async || {
        let calls: String = server.command(&["INFO", "commandstats"]).await;
        let of_lists = calls
            .split_once("cmdstat_lrange:calls=")
            .map_or("", |(_, rest)| rest);
        let count = of_lists.split(',').next().and_then(|n| n.parse().ok());
        count.unwrap_or(0_u32)
    };
    until("both pay", looks, |&looks| looks >= 2).await;
    impatient.hang_up().await;
    for copy in &copies {
        copy.process.terminate();
    }
    assert_eq!(patient.answer().await.status, 200);
    for copy in &mut copies {
        copy.ends_well().await;
    }

    assert!(observer.list("").await.expect("Redis").is_empty());
    let heir = Service::start(&server.url(), STOCK, "0").await;
    for id in [answered, unanswered] {
        let order = call(heir.address, Call::Show(id)).await.expect("an answer");
        assert_eq!(order.body["status"], "paid");
    }
    let books = call(heir.address, Call::Books).await.expect("an answer");
    let mut charges = books.body["charges"].as_array().expect("charges").clone();
    charges.sort_by_key(serde_json::Value::as_u64);
    assert_eq!(json!(charges), json!([answered, unanswered]));
}

/// An outage takes a copy out of the load balancer, and restarts none.
#[tokio::test]
async fn an_outage_makes_it_unready_and_not_dead() {
    let mut server = RedisServer::start().await;
    let service = Service::start(&server.url(), STOCK, "0").await;
    let status = async |probe: Call| {
        let answer = call(service.address, probe).await;
        answer.expect("an answer").status
    };
    let ready = async || status(Call::Ready).await;
    let live = async || status(Call::Live).await;
    until("it is ready", ready, |&status| status == 200).await;
    assert_eq!(live().await, 200);

    server.kill();
    until("it is not ready", ready, |&status| status == 503).await;
    assert_eq!(live().await, 200);

    server.restart().await;
    until("it is ready again", ready, |&status| status == 200).await;
}

#[test]
fn what_it_is_told_wrong_it_explains() {
    for (arguments, says) in [
        (&["--stock", "many"][..], "--stock"),
        (&["--what"], "--what"),
        (&["--store", "nowhere"], "store URL"),
        (&["--store", "redis://127.0.0.1:1"], "redis"),
    ] {
        let mut program = command(env!("CARGO_BIN_EXE_axum_orders"));
        let output = program.args(arguments).env_remove("DLOCK_URL").output();
        let output = output.expect("the service");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(
            errors.contains(says) && !errors.contains("panicked"),
            "{arguments:?}: {errors}"
        );
    }
}
