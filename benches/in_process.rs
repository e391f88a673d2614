//! What dlock costs without a network: the `memory:` store, and re-entry.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use criterion::async_executor::AsyncExecutor;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dlock_benches::{Dlock, Locker};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const TASKS: usize = 64;

/// So many sections of each task are one measurement.
const SECTIONS: usize = 50;

/// Runs what never waits, inside a body that a runtime runs already.
struct Inside;

impl AsyncExecutor for Inside {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("re-entry waited"),
        }
    }
}

fn in_process(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let dlock = runtime.block_on(Dlock::in_memory());

    let mut group = criterion.benchmark_group("memory");
    group.bench_function("uncontended pair", |bencher| {
        bencher
            .to_async(&runtime)
            .iter(|| dlock.section("alone", async {}));
    });
    group.bench_function("re-entry", |bencher| {
        // A body inside of which everything is measured.
        runtime.block_on(dlock.section("outer", async {
            bencher
                .to_async(Inside)
                .iter(|| dlock.section("outer", async {}));
        }));
    });
    group.throughput(Throughput::Elements((TASKS * SECTIONS) as u64));
    group.sample_size(20);
    for (name, key) in [
        (
            "64 tasks, one key",
            (|_| "hot".to_owned()) as fn(usize) -> String,
        ),
        ("64 tasks, 64 keys", |task| format!("key:{task}")),
    ] {
        group.bench_function(name, |bencher| {
            bencher.to_async(&runtime).iter(|| contended(&dlock, key));
        });
    }
    group.finish();
}

async fn contended(dlock: &Dlock, key: fn(usize) -> String) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (dlock, key) = (dlock.clone(), key(task));
        tasks.spawn(async move {
            for _ in 0..SECTIONS {
                dlock.section(&key, async {}).await;
            }
        });
    }
    tasks.join_all().await;
}

criterion_group!(benches, in_process);
criterion_main!(benches);
