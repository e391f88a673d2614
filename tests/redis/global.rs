//! What a process has once: the manager of `dlock::init`, the environment, and
//! code that runs outside a runtime. Each test has a process of its own.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlock::{Config, LockError, LockManager, distributed_lock};
use tokio::runtime::Builder;

use crate::support::alone::{alone, alone_on_one_thread};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{connect, has_no_manager, held, is_misconfigured, is_shut_down};
use crate::support::locks::{is_unavailable, is_unsupported, says, served};
use crate::support::port::free_port;
use crate::support::redis::RedisServer;
use crate::support::runtimes::current_thread;
use crate::support::wait::{HANG, until, within};

#[distributed_lock(key = "job:<id>", ttl = "5s")]
async fn job(id: u32) -> Result<u64, LockError> {
    Ok(dlock::current().expect("inside the lock").token().into())
}

fn config(server: &RedisServer) -> Config {
    Config::from_url(&server.url()).expect("a valid URL")
}

fn is_not_initialized<T>(result: Result<T, LockError>) {
    says(&has_no_manager(result), &["`job:7`", "dlock::init"]);
}

#[test]
fn use_before_init_says_so() {
    alone_on_one_thread("global::use_before_init_says_so", &[], async || {
        is_not_initialized(job(7).await);
        is_not_initialized(dlock::lock("job:7").acquire().await);
        is_not_initialized(dlock::lock("job:7").run(async {}).await);
        // Nothing to shut down, and nothing to hang on.
        within(HANG, dlock::shutdown()).await;
    });
}

#[test]
fn a_second_init_is_refused_and_the_first_stays() {
    let name = "global::a_second_init_is_refused_and_the_first_stays";
    alone_on_one_thread(name, &[], async || {
        let (first, second) = (RedisServer::start().await, RedisServer::start().await);
        dlock::init(config(&first)).await.expect("the first init");
        let error = dlock::init(config(&second)).await;
        let error = error.expect_err("the second init");
        assert!(matches!(error, LockError::AlreadyInitialized), "{error:?}");
        says(&error, &["dlock::init"]);

        let _guard = held(dlock::lock("key")).await;
        assert!(!first.keys().await.is_empty());
        assert!(second.keys().await.is_empty());
    });
}

#[test]
fn an_init_that_failed_may_be_tried_again() {
    let name = "global::an_init_that_failed_may_be_tried_again";
    alone_on_one_thread(name, &[], async || {
        let nobody = format!("redis://127.0.0.1:{}", free_port());
        let config_of_nobody = Config::from_url(&nobody).expect("a valid URL");
        is_unavailable(within(HANG, dlock::init(config_of_nobody)).await);
        is_not_initialized(job(7).await);

        let server = RedisServer::start().await;
        dlock::init(config(&server)).await.expect("the next try");
        job(7).await.expect("the lock");
    });
}

/// As when one `#[tokio::test]` connects and the next one uses it.
#[test]
fn an_init_in_one_runtime_serves_the_next() {
    let name = "global::an_init_in_one_runtime_serves_the_next";
    alone(name, &[], || {
        let servers = current_thread();
        let server = servers.block_on(RedisServer::start());
        current_thread().block_on(async {
            dlock::init(config(&server)).await.expect("the first init");
            job(7).await.expect("the lock");
        });
        let mut last = 0;
        for is_last in [false, false, true] {
            current_thread().block_on(async {
                let token = within(HANG, job(7)).await.expect("the lock");
                assert!(token > last);
                // Renewed although the runtime of `init` is gone; waited for
                // although that of the last wait is.
                let other = connect(config(&server)).await;
                let guard = held(other.lock("job:7")).await;
                let waiting = tokio::spawn(job(7));
                let waiters = async || {
                    let seen = other.inspect("job:7").await.expect("inspect");
                    seen.and_then(|lock| lock.waiters)
                };
                until("the waiter waits", waiters, |&waiters| waiters == Some(1)).await;
                guard.release().await.expect("the release");
                last = served(waiting).await;
                if !is_last {
                    return;
                }
                let ttl = Duration::from_millis(900);
                unless_it_stands_still(ttl / 4, async || {
                    let running = dlock::lock("long").ttl(ttl);
                    let ran = running.run(async { tokio::time::sleep(2 * ttl).await });
                    ran.await.expect("a lease that is renewed");
                })
                .await;
            });
        }
        // A guard may be taken by one runtime and dropped outside of any.
        drop(current_thread().block_on(async { held(dlock::lock("kept")).await }));
        drop(current_thread().block_on(async { held(dlock::lock("kept")).await }));
    });
}

/// Asked outside of any runtime, this says at once that it needs one.
fn outside<T>(future: impl Future<Output = Result<T, LockError>>) {
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(result) = pin!(future).as_mut().poll(&mut context) else {
        panic!("it waits outside of a runtime")
    };
    says(&is_unsupported(result), &["runtime"]);
}

#[test]
fn use_outside_a_runtime_is_an_error() {
    alone("global::use_outside_a_runtime_is_an_error", &[], || {
        let servers = current_thread();
        let server = servers.block_on(RedisServer::start());
        outside(dlock::init(config(&server)));
        outside(LockManager::connect(config(&server)));
        let initialized = current_thread().block_on(dlock::init(config(&server)));
        initialized.expect("init");
        outside(job(7));
        outside(dlock::lock("key").acquire());
        outside(dlock::lock("key").try_acquire());
        let keys = servers.block_on(server.keys()).join(" ");
        assert!(!keys.contains("job") && !keys.contains("key"), "{keys}");
        // A future that was begun inside may be dropped outside.
        let runtime = current_thread();
        let mut begun = Box::pin(job(8));
        let polled = poll_fn(|cx| Poll::Ready(begun.as_mut().poll(cx).is_ready()));
        assert!(!runtime.block_on(polled), "it waits for the server");
        drop(begun);
        runtime.block_on(async { within(HANG, job(8)).await.expect("a free lock") });
    });
}

#[test]
fn shutdown_ends_it() {
    alone_on_one_thread("global::shutdown_ends_it", &[], async || {
        let server = RedisServer::start().await;
        dlock::init(config(&server)).await.expect("init");
        drop(held(dlock::lock("key")).await);
        within(HANG, dlock::shutdown()).await;
        let left = connect(config(&server)).await.list("").await.expect("list");
        assert!(left.is_empty(), "{left:?}");
        is_shut_down(job(7).await);
        within(HANG, dlock::shutdown()).await;
    });
}

#[test]
fn the_environment_configures() {
    let port = free_port().to_string();
    let url = format!("redis://127.0.0.1:{port}");
    let environment = [("DLOCK_URL", &*url), ("DLOCK_REQUEST_TIMEOUT", "700ms")];
    let name = "global::the_environment_configures";
    alone_on_one_thread(name, &environment, async || {
        let config = Config::from_env().expect("a valid environment");
        assert!(format!("{config:?}").contains("700ms"), "{config:?}");
        let error = dlock::init(config).await.expect_err("no server");
        let url = std::env::var("DLOCK_URL").expect("set above");
        says(&error, &[url.trim_start_matches("redis://")]);
    });
}

#[test]
fn an_environment_without_a_url_is_an_error() {
    let name = "global::an_environment_without_a_url_is_an_error";
    alone(name, &[("DLOCK_URL", "")], || {
        says(&is_misconfigured(Config::from_env()), &["DLOCK_URL"]);
    });
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
        let without = Builder::new_current_thread().enable_io().build();
        let without = without.expect("a runtime");
        for config in [Config::default(), config(&server)] {
            let refused = is_unsupported(without.block_on(dlock::init(config)));
            says(&refused, &["`enable_time`"]);
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
