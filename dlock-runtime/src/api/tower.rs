//! Limits the concurrent requests of a key, over all copies of a service.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use super::answer::{answer, log_failed, respond};
use super::manager::LockManager;
use super::run::Run;
use crate::backend::Mode;
use crate::core::inner::Inner;
use crate::error::LockError;
use crate::key::LockKey;
use crate::options::{Options, Patience, Shapes};

/// Limits how many requests of a key run at once, over all copies of the service, with
/// [permits](crate::LockRequest::permits). The others are turned away at once, or after a wait.
///
/// The key is made from the request; `None` means no limit. A permit is held until the service has
/// its response: what is streamed after that does not count.
///
/// | what | status | `Retry-After`, in seconds | body |
/// |---|---|---|---|
/// | all permits are in use | 429 Too Many Requests, or [another](Self::status) | as long as the request has waited, rounded up; at least 1 | `{"error":"too_many_requests"}` |
/// | the store does not answer | 503 Service Unavailable | 5 | `{"error":"lock_unavailable"}` |
/// | after [`shutdown`](crate::shutdown) | 503 | 1 | `{"error":"lock_shut_down"}` |
/// | an operator has taken the request [out of the queue](crate::LockManager::break_waiter) | 503 | none | `{"error":"lock_taken_out"}` |
/// | what the key is for has been done, and is [remembered](crate::LockRequest::once) | 409 Conflict | none | `{"error":"lock_done"}` |
/// | the lease was lost: the request is dropped at its next await | 500 Internal Server Error | none | `{"error":"lock_lost"}` |
/// | all others: mistakes in the program or its settings | 500 | none | `{"error":"lock_failed"}` |
///
/// The client is told no more than that; the whole error is an extension of the response. If its
/// client gives up a request, the request leaves the queue, or gives its permit back.
///
/// ```
/// # use dlock_runtime as dlock;
/// # use tower_layer::Layer;
/// use std::time::Duration;
///
/// use dlock::tower::LimitLayer;
/// use http::{Request, StatusCode};
///
/// /// Ten calls at once for each tenant. Requests without a tenant are not limited here.
/// let layer = LimitLayer::new(10, |request: &Request<String>| {
///     let tenant = request.headers().get("x-tenant")?.to_str().ok()?;
///     Some(format!("api:{tenant}"))
/// })
/// .template("api:<tenant>")
/// .timeout(Duration::from_millis(500));
/// # fn service() {}
/// let limited = layer.layer(service());
/// # let _ = (limited, StatusCode::OK);
/// ```
#[derive(Clone)]
pub struct LimitLayer<K> {
    settings: Settings<K>,
}

/// A service under a [`LimitLayer`].
#[derive(Clone)]
pub struct Limit<S, K> {
    inner: S,
    settings: Settings<K>,
}

#[derive(Clone)]
struct Settings<K> {
    key: K,
    options: Options,
    status: StatusCode,
    manager: Option<Arc<Inner>>,
}

impl<K> LimitLayer<K> {
    /// Allows `most` requests at once for each key that `key` makes. Without a
    /// [`timeout`](Self::timeout), no request waits. `most` must be at least 1, and exactly 1 if
    /// the manager is [`fenced`](crate::Config::fenced); otherwise each request is answered with
    /// 500.
    #[track_caller]
    pub fn new(most: u32, key: K) -> Self {
        let options = Options {
            mode: Mode::Permits(most),
            patience: Patience::Try,
            ..Options::new()
        };
        let settings = Settings {
            key,
            options,
            status: StatusCode::TOO_MANY_REQUESTS,
            manager: None,
        };
        Self { settings }
    }

    /// How long a request waits for a permit, including an outage of the store, before it is turned
    /// away.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.settings.options.patience = Patience::Within(limit);
        self
    }

    /// How soon the permits of a copy that dies become free. A copy that lives renews them.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.options.ttl = Some(ttl);
        self
    }

    /// The status for a request that is turned away: 429 by default, which says that the client
    /// sends too much. 503 says that the service has too much to do.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.settings.status = status;
        self
    }

    /// The name of the lock in spans, metrics and warnings, as
    /// [`LockRequest::template`](crate::LockRequest::template).
    #[must_use]
    pub fn template(mut self, template: &'static str) -> Self {
        self.settings.options.template = template;
        self.settings.options.shapes = Shapes::OfTemplate;
        self
    }

    /// The manager whose store has the permits. By default that of the calling code, as for
    /// annotated functions.
    #[must_use]
    pub fn manager(mut self, manager: &LockManager) -> Self {
        self.settings.manager = Some(Arc::clone(manager.inner()));
        self
    }
}

impl<S, K: Clone> Layer<S> for LimitLayer<K> {
    type Service = Limit<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        let settings = self.settings.clone();
        Limit { inner, settings }
    }
}

impl<S, K, N, In, Out> Service<Request<In>> for Limit<S, K>
where
    S: Service<Request<In>, Response = Response<Out>, Future: Send> + Clone + Send + 'static,
    K: Fn(&Request<In>) -> Option<N>,
    N: Into<LockKey>,
    In: Send + 'static,
    Out: From<&'static str> + Send + 'static,
    S::Error: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        // This service was polled as ready, and its clone was not. So this one serves the request,
        // and the clone takes its place:
        // <https://docs.rs/tower/latest/tower/trait.Service.html#be-careful-when-cloning-inner-services>
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let Settings {
            key,
            options,
            status,
            manager,
        } = &self.settings;
        let Some(key) = key(&request) else {
            return Box::pin(async move { inner.call(request).await });
        };
        let (status, manager) = (*status, manager.clone());
        let served = Run::new(manager, key.into(), *options, async move {
            inner.call(request).await
        });
        Box::pin(async move {
            served
                .await
                .unwrap_or_else(|error| Ok(turned_away(error, status)))
        })
    }
}

fn turned_away<Out: From<&'static str>>(error: LockError, status: StatusCode) -> Response<Out> {
    let too_many = |waited| (status, Some(waited), r#"{"error":"too_many_requests"}"#);
    let answer = match &error {
        LockError::Busy { .. } => too_many(Duration::ZERO),
        LockError::Timeout { waited, .. } => too_many(*waited),
        _ => answer(&error),
    };
    log_failed!("dlock::tower", &error, answer.0);
    respond(error, answer)
}

impl<K> fmt::Debug for LimitLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer")
            .field("mode", &self.settings.options.mode)
            .field("template", &self.settings.options.template)
            .finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, K> fmt::Debug for Limit<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("inner", &self.inner)
            .field("mode", &self.settings.options.mode)
            .field("template", &self.settings.options.template)
            .finish_non_exhaustive()
    }
}
