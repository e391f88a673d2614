//! What a process has once: the manager of `dlock::init`, the environment, and
//! code that runs outside a runtime. Each test has a process of its own.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlock::{Config, LockError, LockManager, distributed_lock};
use tokio::runtime::{Builder, Runtime};

use crate::support::alone::alone;
use crate::support::locks::{held, is_unavailable, served};
use crate::support::port::free_port;
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, until, within};

#[distributed_lock(key = "job:<id>", ttl = "900ms")]
async fn job(id: u32) -> Result<u64, LockError> {
    Ok(dlock::current().expect("inside the lock").token().into())
}

fn current_thread() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn config(server: &RedisServer) -> Config {
    Config::from_url(&server.url()).expect("a valid URL")
}

#[test]
fn use_before_init_says_so() {
    alone("global::use_before_init_says_so", &[], || {
        current_thread().block_on(async {
            for error in [
                job(7).await.map(drop).expect_err("no manager"),
                dlock::lock("job:7")
                    .acquire()
                    .await
                    .map(drop)
                    .expect_err("no manager"),
                dlock::lock("job:7")
                    .run(async {})
                    .await
                    .expect_err("no manager"),
            ] {
                assert!(
                    matches!(error, LockError::NotInitialized { .. }),
                    "{error:?}"
                );
                let message = error.to_string();
                assert!(
                    message.contains("`job:7`") && message.contains("dlock::init"),
                    "{message}"
                );
            }
            // Nothing to shut down, and nothing to hang on.
            within(HANG, dlock::shutdown()).await;
        });
    });
}

#[test]
fn a_second_init_is_refused_and_the_first_stays() {
    alone(
        "global::a_second_init_is_refused_and_the_first_stays",
        &[],
        || {
            current_thread().block_on(async {
                let (first, second) = (RedisServer::start().await, RedisServer::start().await);
                dlock::init(config(&first)).await.expect("the first init");
                let error = dlock::init(config(&second))
                    .await
                    .expect_err("the second init");
                assert!(matches!(error, LockError::AlreadyInitialized), "{error:?}");
                assert!(error.to_string().contains("dlock::init"), "{error}");

                let _guard = dlock::lock("key").acquire().await.expect("the lock");
                assert!(!first.keys().await.is_empty());
                assert!(second.keys().await.is_empty());
            });
        },
    );
}

#[test]
fn an_init_that_failed_may_be_tried_again() {
    alone(
        "global::an_init_that_failed_may_be_tried_again",
        &[],
        || {
            current_thread().block_on(async {
                let nobody = format!("redis://127.0.0.1:{}", free_port());
                let config_of_nobody = Config::from_url(&nobody).expect("a valid URL");
                is_unavailable(within(HANG, dlock::init(config_of_nobody)).await);
                let error = job(7).await.expect_err("no manager");
                assert!(
                    matches!(error, LockError::NotInitialized { .. }),
                    "{error:?}"
                );

                let server = RedisServer::start().await;
                dlock::init(config(&server)).await.expect("the next try");
                job(7).await.expect("the lock");
            });
        },
    );
}

/// As when one `#[tokio::test]` connects and the next one uses it.
#[test]
fn an_init_in_one_runtime_serves_the_next() {
    alone(
        "global::an_init_in_one_runtime_serves_the_next",
        &[],
        || {
            let servers = current_thread();
            let server = servers.block_on(RedisServer::start());
            current_thread().block_on(async {
                dlock::init(config(&server)).await.expect("the first init");
                job(7).await.expect("the lock");
            });
            let mut last = 0;
            for _ in 0..3 {
                current_thread().block_on(async {
                    let token = within(HANG, job(7)).await.expect("the lock");
                    assert!(token > last);
                    last = token;
                    // Renewed although the runtime of `init` is gone; waited for
                    // although that of the last wait is.
                    let other = LockManager::connect(config(&server))
                        .await
                        .expect("a connection");
                    let guard = held(other.lock("job:7")).await;
                    let waiting = tokio::spawn(job(7));
                    until(
                        "the waiter waits",
                        async || {
                            other
                                .inspect("job:7")
                                .await
                                .expect("inspect")
                                .map(|lock| lock.waiters)
                        },
                        |&waiters| waiters == Some(1),
                    )
                    .await;
                    guard.release().await.expect("the release");
                    last = served(waiting).await;
                    let ttl = Duration::from_millis(900);
                    let body = async {
                        tokio::time::sleep(2 * ttl).await;
                    };
                    dlock::lock("long")
                        .ttl(ttl)
                        .run(body)
                        .await
                        .expect("a lease that is renewed");
                });
            }
            // A guard may be taken by one runtime and dropped outside of any.
            let guard = current_thread()
                .block_on(async { dlock::lock("kept").acquire().await })
                .expect("the lock");
            drop(guard);
            current_thread().block_on(async {
                within(HANG, dlock::lock("kept").acquire())
                    .await
                    .map(drop)
                    .expect("a free lock");
            });
        },
    );
}

/// Polls a future where there is no runtime at all.
fn poll_outside<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future)
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn use_outside_a_runtime_is_an_error() {
    alone("global::use_outside_a_runtime_is_an_error", &[], || {
        let servers = current_thread();
        let server = servers.block_on(RedisServer::start());
        let refused = |error: LockError| {
            assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
            assert!(error.to_string().contains("runtime"), "{error}");
        };
        let Poll::Ready(Err(error)) = poll_outside(dlock::init(config(&server))) else {
            panic!("connected outside a runtime")
        };
        refused(error);
        let Poll::Ready(Err(error)) = poll_outside(LockManager::connect(config(&server))) else {
            panic!("connected outside a runtime")
        };
        refused(error);

        current_thread()
            .block_on(dlock::init(config(&server)))
            .expect("init");
        let Poll::Ready(Err(error)) = poll_outside(job(7)) else {
            panic!("locked outside a runtime")
        };
        refused(error);
        let Poll::Ready(Err(error)) = poll_outside(dlock::lock("key").acquire()) else {
            panic!("locked outside a runtime")
        };
        refused(error);
        let Poll::Ready(Err(error)) = poll_outside(dlock::lock("key").try_acquire()) else {
            panic!("locked outside a runtime")
        };
        refused(error);
        let keys = servers.block_on(server.keys());
        assert!(
            keys.iter()
                .all(|key| !key.contains("job") && !key.contains("key")),
            "{keys:?}"
        );
        // A future that was begun inside may be dropped outside.
        let runtime = current_thread();
        let mut begun = Box::pin(job(8));
        let _ = runtime.block_on(async {
            tokio::time::timeout(
                Duration::ZERO,
                std::future::poll_fn(|cx| begun.as_mut().poll(cx)),
            )
            .await
        });
        drop(begun);
        runtime.block_on(async { within(HANG, job(8)).await.expect("a free lock") });
    });
}

#[test]
fn shutdown_ends_it() {
    alone("global::shutdown_ends_it", &[], || {
        current_thread().block_on(async {
            let server = RedisServer::start().await;
            dlock::init(config(&server)).await.expect("init");
            drop(dlock::lock("key").acquire().await.expect("the lock"));
            within(HANG, dlock::shutdown()).await;
            let other = LockManager::connect(config(&server))
                .await
                .expect("a connection");
            assert!(other.list("").await.expect("list").is_empty());
            let error = job(7).await.expect_err("after the shutdown");
            assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
            within(HANG, dlock::shutdown()).await;
        });
    });
}

#[test]
fn the_environment_configures() {
    let port = free_port().to_string();
    let url = format!("redis://127.0.0.1:{port}");
    let environment = [
        ("DLOCK_URL", url.as_str()),
        ("DLOCK_REQUEST_TIMEOUT", "700ms"),
    ];
    alone("global::the_environment_configures", &environment, || {
        let config = Config::from_env().expect("a valid environment");
        assert!(format!("{config:?}").contains("700ms"), "{config:?}");
        let error = current_thread()
            .block_on(dlock::init(config))
            .expect_err("no server");
        let url = std::env::var("DLOCK_URL").expect("set above");
        let address = url.trim_start_matches("redis://");
        assert!(error.to_string().contains(address), "{error}");
    });
}

#[test]
fn an_environment_without_a_url_is_an_error() {
    let environment = [("DLOCK_URL", "")];
    alone(
        "global::an_environment_without_a_url_is_an_error",
        &environment,
        || {
            let error = Config::from_env().expect_err("no URL");
            assert!(matches!(error, LockError::Config { .. }), "{error:?}");
            assert!(error.to_string().contains("DLOCK_URL"), "{error}");
        },
    );
}

/// Nothing is printed meanwhile, and a hook of the program's own is asked of
/// nothing but its own panics.
#[test]
fn a_runtime_without_timers_is_told_at_init() {
    let name = "global::a_runtime_without_timers_is_told_at_init";
    alone(name, &[], || {
        static PANICS: AtomicUsize = AtomicUsize::new(0);
        std::panic::set_hook(Box::new(|_| {
            PANICS.fetch_add(1, Ordering::Relaxed);
        }));
        let server = current_thread().block_on(RedisServer::start());
        let without = Builder::new_current_thread()
            .enable_io()
            .build()
            .expect("a runtime");
        for config in [Config::default(), config(&server)] {
            let error = without
                .block_on(dlock::init(config))
                .expect_err("no timers");
            assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
            assert!(error.to_string().contains("`enable_time`"), "{error}");
        }
        assert_eq!(PANICS.load(Ordering::Relaxed), 0);
        let _ = std::panic::catch_unwind(|| panic!("of the program's own"));
        assert_eq!(PANICS.load(Ordering::Relaxed), 1);
        let _ = std::panic::take_hook();
        current_thread().block_on(async {
            dlock::init(config(&server)).await.expect("with timers");
            job(7).await.expect("the lock");
        });
    });
}
