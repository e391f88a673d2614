//! What Kubernetes asks: `GET /ready` and `GET /live`. `docs/kubernetes.md` has the manifest.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

pub(crate) fn routes() -> Router {
    Router::new()
        .route("/ready", get(ready))
        .route("/live", get(live))
}

/// Whether requests should be sent here. Hardly anything works without the store, so it is asked.
async fn ready() -> StatusCode {
    let Some(manager) = dlock::manager() else {
        return StatusCode::SERVICE_UNAVAILABLE;
    };
    match manager.ping().await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Whether this process should go on. Not a question of the store: a restart would not bring it
/// back, and would lose every lock that is held.
async fn live() -> StatusCode {
    StatusCode::OK
}
