//! A service under a limit: how many requests it serves at once, and what the others
//! are answered.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dlock_conformance::support::alone::alone_with_its_log;
use dlock_conformance::support::wait::until;
use dlock_runtime::backend::memory::Memory;
use dlock_runtime::tower::LimitLayer;
use dlock_runtime::{Config, LockError, LockManager};
use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower_layer::Layer as _;
use tower_service::Service;

/// Serves a request when the test lets it.
#[derive(Clone)]
struct Gated {
    gate: Arc<Semaphore>,
    /// A clone is not ready because the original is.
    is_ready: bool,
}

impl Gated {
    fn new() -> (Self, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(0));
        let service = Self {
            gate: Arc::clone(&gate),
            is_ready: false,
        };
        (service, gate)
    }
}

impl Service<Request<String>> for Gated {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "it was not asked");
        let gate = Arc::clone(&self.gate);
        Box::pin(async move {
            gate.acquire().await.expect("it is open").forget();
            Ok(Response::new(request.into_body()))
        })
    }
}

type Answered = JoinHandle<Response<String>>;

/// One request of this tenant, in the scope of a manager.
fn ask<S>(service: &S, manager: &LockManager, tenant: &str) -> Answered
where
    S: Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send>,
    S: Clone + Send + 'static,
{
    let request = Request::builder().header("x-tenant", tenant);
    let request = request.body("served".to_owned()).expect("a request");
    let mut service = service.clone();
    let served = manager.scope(async move {
        poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
        service.call(request).await.expect("an answer")
    });
    tokio::spawn(served)
}

fn tenant(request: &Request<String>) -> Option<String> {
    let tenant = request.headers()["x-tenant"].to_str().ok()?;
    (tenant != "free").then(|| format!("api:{tenant}"))
}

async fn copies<const COUNT: usize>() -> (Memory, [LockManager; COUNT]) {
    let memory = Memory::new();
    let mut copies = Vec::new();
    for _ in 0..COUNT {
        let config = Config::with_backend(memory.clone());
        copies.push(LockManager::connect(config).await.expect("memory"));
    }
    (memory, copies.try_into().expect("so many"))
}

async fn held(manager: &LockManager, key: &str, count: usize) {
    let holders = async || {
        let lock = manager.inspect(key).await.expect("memory");
        lock.map_or(0, |lock| lock.holders.len())
    };
    until("so many are served", holders, |&holders| holders == count).await;
}

/// Status, `Retry-After` and body.
async fn told(answered: Answered) -> (u16, Option<String>, String) {
    let response = answered.await.expect("no panic");
    let after = response.headers().get(RETRY_AFTER);
    let after = after.map(|value| value.to_str().expect("digits").to_owned());
    (response.status().as_u16(), after, response.into_body())
}

fn too_many(status: u16, after: &str) -> (u16, Option<String>, String) {
    let body = r#"{"error":"too_many_requests"}"#;
    (status, Some(after.to_owned()), body.to_owned())
}

fn served() -> (u16, Option<String>, String) {
    (200, None, "served".to_owned())
}

#[tokio::test]
async fn so_many_of_a_key_are_served_by_all_copies_together() {
    let (_, [one, other]) = copies().await;
    let (service, gate) = Gated::new();
    let limited = LimitLayer::new(2, tenant).layer(service);
    let first = ask(&limited, &one, "acme");
    let second = ask(&limited, &other, "acme");
    held(&one, "api:acme", 2).await;
    for copy in [&one, &other] {
        assert_eq!(told(ask(&limited, copy, "acme")).await, too_many(429, "1"));
    }
    let of_others = [ask(&limited, &one, "zeta"), ask(&limited, &one, "free")];
    gate.add_permits(4);
    for answered in of_others.into_iter().chain([first, second]) {
        assert_eq!(told(answered).await, served());
    }
    held(&one, "api:acme", 0).await;
    gate.add_permits(1);
    assert_eq!(told(ask(&limited, &one, "acme")).await, served());
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_as_long_as_it_may() {
    let (_, [manager]) = copies().await;
    let (service, gate) = Gated::new();
    let layer = LimitLayer::new(1, tenant)
        .timeout(Duration::from_millis(2_500))
        .status(StatusCode::SERVICE_UNAVAILABLE);
    let limited = layer.layer(service);
    let first = ask(&limited, &manager, "acme");
    held(&manager, "api:acme", 1).await;
    assert_eq!(
        told(ask(&limited, &manager, "acme")).await,
        too_many(503, "3")
    );
    let second = ask(&limited, &manager, "acme");
    gate.add_permits(2);
    assert_eq!(told(first).await, served());
    assert_eq!(told(second).await, served());
}

#[tokio::test]
async fn a_client_that_hangs_up_gives_its_permit_back() {
    let (_, [manager]) = copies().await;
    let (service, gate) = Gated::new();
    let limited = LimitLayer::new(1, tenant).layer(service);
    let gone = ask(&limited, &manager, "acme");
    held(&manager, "api:acme", 1).await;
    gone.abort();
    held(&manager, "api:acme", 0).await;
    gate.add_permits(1);
    assert_eq!(told(ask(&limited, &manager, "acme")).await, served());
}

#[tokio::test]
async fn what_is_no_limit_is_told_as_it_is() {
    let (memory, [manager]) = copies().await;
    let (service, _gate) = Gated::new();
    let limited = LimitLayer::new(1, tenant).layer(service.clone());
    let lost = ask(&limited, &manager, "acme");
    held(&manager, "api:acme", 1).await;
    assert!(memory.faults().take_away("api:acme"));
    let response = lost.await.expect("no panic");
    assert!(matches!(
        response.extensions().get(),
        Some(LockError::Lost { .. })
    ));
    assert_eq!(
        (response.status().as_u16(), &**response.body()),
        (500, r#"{"error":"lock_lost"}"#)
    );

    memory.faults().set_unavailable(true);
    let (status, after, body) = told(ask(&limited, &manager, "acme")).await;
    assert_eq!((status, after.as_deref()), (503, Some("5")), "{body}");
    memory.faults().set_unavailable(false);

    let none = LimitLayer::new(0, tenant).layer(service);
    let (status, after, body) = told(ask(&none, &manager, "acme")).await;
    assert_eq!((status, after), (500, None), "{body}");
}

/// Without a scope, by the manager that the layer was given.
#[tokio::test]
async fn a_layer_may_have_a_manager_of_its_own() {
    let ((_, [own]), (_, [scope])) = (copies().await, copies().await);
    let (service, gate) = Gated::new();
    let limited = LimitLayer::new(1, tenant).manager(&own).layer(service);
    let first = ask(&limited, &scope, "acme");
    held(&own, "api:acme", 1).await;
    gate.add_permits(1);
    assert_eq!(told(first).await, served());
}

/// In an outage, each request is refused for the same reason.
#[test]
fn a_hundred_requests_in_an_outage_are_few_lines() {
    let name = "tower::a_hundred_requests_in_an_outage_are_few_lines";
    alone_with_its_log(name, async |log| {
        let (memory, [manager]) = copies().await;
        let (service, _gate) = Gated::new();
        let limited = LimitLayer::new(1, tenant).layer(service);
        memory.faults().set_unavailable(true);
        for _ in 0..100 {
            let (status, ..) = told(ask(&limited, &manager, "acme")).await;
            assert_eq!(status, 503);
        }
        let lines = log.lines_with("WARN dlock::tower");
        assert!((1..50).contains(&lines.len()), "{lines:?}");
    });
}
