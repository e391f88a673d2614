//! Why a request was not served, and what the client is told.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use dlock::LockError;
use serde_json::json;

use crate::bank::BankError;
use crate::table::TableError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ShopError {
    #[error("there is no such article")]
    NoSuchArticle,
    #[error("there is no such order")]
    NoSuchOrder,
    #[error("an order is for at least one piece")]
    NothingOrdered,
    #[error("too few pieces are left")]
    SoldOut,
    #[error("the order is cancelled")]
    Cancelled,
    #[error("the order is paid")]
    Paid,
    // What the attribute ends a handler with when the lock was not had, or was
    // lost.
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Bank(#[from] BankError),
    #[error("a payment ended early: {0}")]
    Payment(#[from] tokio::task::JoinError),
}

impl IntoResponse for ShopError {
    fn into_response(self) -> Response {
        let (status, code) = match self {
            // dlock knows what to say, and keeps the key to itself.
            Self::Lock(error) => return error.into_response(),
            Self::NoSuchArticle => (StatusCode::NOT_FOUND, "no_such_article"),
            Self::NoSuchOrder => (StatusCode::NOT_FOUND, "no_such_order"),
            Self::NothingOrdered => (StatusCode::UNPROCESSABLE_ENTITY, "nothing_ordered"),
            Self::SoldOut => (StatusCode::CONFLICT, "sold_out"),
            Self::Cancelled => (StatusCode::CONFLICT, "cancelled"),
            Self::Paid => (StatusCode::CONFLICT, "paid"),
            Self::Table(_) | Self::Bank(_) | Self::Payment(_) => {
                tracing::error!(error = %self, "a request has failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "failed")
            }
        };
        (status, Json(json!({ "error": code }))).into_response()
    }
}
