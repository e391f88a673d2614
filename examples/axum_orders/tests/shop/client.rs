//! A client: one connection for each request, which breaks when the future is
//! dropped.

use std::error::Error;
use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::http::request::Builder;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::wait::{HANG, within};

pub(crate) type ClientError = Box<dyn Error + Send + Sync>;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) body: Value,
}

impl Answer {
    /// The `error` of the body.
    pub(crate) fn error(&self) -> Option<&str> {
        self.body["error"].as_str()
    }
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Place {
        sku: &'static str,
        quantity: u32,
    },
    Pay(u64),
    /// As this customer.
    PayAs {
        order: u64,
        customer: &'static str,
    },
    Cancel(u64),
    Show(u64),
    Books,
    /// Whether it wants requests.
    Ready,
    /// Whether it wants to live.
    Live,
}

/// Asks and waits for the answer. Dropping the future hangs up.
pub(crate) async fn call(address: SocketAddr, call: Call) -> Result<Answer, ClientError> {
    let pay = |order| {
        (
            Method::POST,
            format!("/orders/{order}/payment"),
            String::new(),
        )
    };
    let customer = match call {
        Call::PayAs { customer, .. } => Some(customer),
        _ => None,
    };
    let (method, path, body) = match call {
        Call::Place { sku, quantity } => {
            let body = json!({ "sku": sku, "quantity": quantity });
            (Method::POST, "/orders".to_owned(), body.to_string())
        }
        Call::Pay(id) => pay(id),
        Call::PayAs { order, .. } => pay(order),
        Call::Cancel(id) => (Method::DELETE, format!("/orders/{id}"), String::new()),
        Call::Show(id) => (Method::GET, format!("/orders/{id}"), String::new()),
        Call::Books => (Method::GET, "/books".to_owned(), String::new()),
        Call::Ready => (Method::GET, "/ready".to_owned(), String::new()),
        Call::Live => (Method::GET, "/live".to_owned(), String::new()),
    };
    let request = Request::builder().method(method).uri(path);
    let request = match customer {
        Some(customer) => request.header("x-customer", customer),
        None => request,
    };
    answer(address, request, body).await
}

pub(crate) async fn send(
    address: SocketAddr,
    method: Method,
    path: &str,
    body: String,
) -> Result<Answer, ClientError> {
    answer(address, Request::builder().method(method).uri(path), body).await
}

async fn answer(
    address: SocketAddr,
    request: Builder,
    body: String,
) -> Result<Answer, ClientError> {
    let request = request
        .header(HOST, address.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let answer = async move {
        let response = sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        let retry_after = match parts.headers.get(RETRY_AFTER) {
            Some(value) => Some(value.to_str()?.to_owned()),
            None => None,
        };
        Ok(Answer {
            status: parts.status.as_u16(),
            retry_after,
            // axum's own refusals are plain text.
            body: serde_json::from_slice(&body).unwrap_or_default(),
        })
    };
    // The connection ends with its sender.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}

/// A request under way, on a task of its own.
#[derive(Debug)]
pub(crate) struct Pending(JoinHandle<Result<Answer, ClientError>>);

impl Pending {
    pub(crate) fn start(address: SocketAddr, what: Call) -> Self {
        Self(tokio::spawn(call(address, what)))
    }

    /// Closes the connection in the middle of the request.
    pub(crate) async fn hang_up(self) {
        self.0.abort();
        let ended = self.0.await;
        assert!(
            ended.as_ref().is_err_and(|error| error.is_cancelled()),
            "it was answered: {ended:?}"
        );
    }

    pub(crate) async fn answer(self) -> Answer {
        let answer = within(HANG, self.0).await.expect("no panic");
        answer.expect("an answer")
    }
}
