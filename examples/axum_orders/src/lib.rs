//! A little shop over HTTP, of which any number of copies may run.
//!
//! ```sh
//! cargo run -p axum_orders                                       # one copy, in memory
//! cargo run -p axum_orders -- --store redis://127.0.0.1:6379     # as many as you like
//! ```
//!
//! | request | answer |
//! |---|---|
//! | `POST /orders` with `{"sku":"blue-mug","quantity":2}` | 201 and the order; 409 when too few are left |
//! | `GET /orders/{id}` | the order |
//! | `POST /orders/{id}/payment` | 200 when it is paid, by this request or before; 423 while another one pays; 429 while too many others of the same customer are paid (header `x-customer`, a number) |
//! | `DELETE /orders/{id}` | 200 and the pieces back on the shelf; 409 when it is paid |
//! | `GET /books` | everything that the shop and its bank have written down |
//! | `GET /metrics` | what Prometheus scrapes |
//! | `GET /ready`, `GET /live` | the probes of Kubernetes: 503 from `/ready` while the store is down |
//!
//! The books never sell a piece twice, whatever dies or stalls: each write
//! carries the fencing token. What takes no token, the bank, is protected as
//! long as the lease holds; `handlers.rs` says what a real one needs besides.
//!
//! What has to be one at a time is annotated in `handlers.rs`, and how a lock
//! that was not had becomes an answer is in `error.rs`. The rest is what such a
//! service looks like without locks.

pub mod bank;
mod error;
mod handlers;
mod order;
pub mod shop;
pub mod table;

pub use handlers::router;
pub use shop::Shop;

/// How long Redis may take for one answer.
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
