//! What Prometheus scrapes: `GET /metrics`. `docs/grafana/` has alerts and a board for it.

use std::future::ready;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};

/// In seconds: a wait is often well below a millisecond, and a charge takes its time.
const BUCKETS: [f64; 12] = [
    0.000_25, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// Counts from now on, and shows it.
pub(crate) fn route() -> Result<Router, BuildError> {
    let seconds = Matcher::Suffix("_seconds".to_owned());
    let recorder = PrometheusBuilder::new().set_buckets_for_metric(seconds, &BUCKETS)?;
    let handle = recorder.install_recorder()?;
    Ok(Router::new().route("/metrics", get(move || ready(handle.render()))))
}
