//! What a call needs of memory: the size of its future, and its allocations.
//!
//! A program of its own, because the allocator that counts makes everything
//! slower. The server's URL is in `DLOCK_URL`. Prints lines of
//! `size <what> <bytes>` and `calls <what> <allocations> <bytes>`.

use std::alloc::System;
use std::hint::black_box;

use dlock::{LockError, distributed_lock};
use dlock_benches::{Bare, Dlock, Locker, Rslock};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// So many calls are counted, after as many that were not: what is kept between
/// calls has its size by then.
const CALLS: usize = 200;

/// A body that keeps something over an await.
async fn body(sku: &str) -> Result<usize, LockError> {
    let kept = black_box([0_u8; 256]);
    tokio::task::yield_now().await;
    Ok(sku.len() + kept.len())
}

#[distributed_lock(key = "stock:<sku>")]
async fn annotated(sku: &str) -> Result<usize, LockError> {
    let kept = black_box([0_u8; 256]);
    tokio::task::yield_now().await;
    Ok(sku.len() + kept.len())
}

/// All on one thread, so that what a connection allocates for a call counts.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let url = std::env::var("DLOCK_URL").expect("the server in DLOCK_URL");
    println!("size body {}", size_of_val(&body("blue-mug")));
    println!("size annotated {}", size_of_val(&annotated("blue-mug")));

    let memory = Dlock::in_memory().await;
    let dlock = Dlock::connect(&url).await;
    let bare = Bare::connect(&url).await;
    let rslock = Rslock::connect(&url).await;
    count("memory", || memory.section("key", async {})).await;
    count("dlock", || dlock.section("key", async {})).await;
    count("bare", || bare.section("key", async {})).await;
    count("rslock", || rslock.section("key", async {})).await;
    let calls = count("annotated", || annotated("blue-mug"));
    memory.manager().scope(calls).await;
    let again = count("reentry", || memory.section("key", async {}));
    memory.section("key", again).await;
}

async fn count<F: Future>(what: &str, call: impl Fn() -> F) {
    for _ in 0..CALLS {
        call().await;
    }
    let region = Region::new(ALLOCATOR);
    for _ in 0..CALLS {
        call().await;
    }
    let change = region.change();
    let calls = (change.allocations + change.reallocations) as f64 / CALLS as f64;
    let bytes = change.bytes_allocated as f64 / CALLS as f64;
    println!("calls {what} {calls:.1} {bytes:.0}");
}
