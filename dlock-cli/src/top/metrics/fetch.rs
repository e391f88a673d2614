//! The numbers that a service exports, over plain HTTP.

use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::text::{self, Series};

/// How long a service may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// More than this is not the metrics of a service.
const MOST: usize = 16 << 20;

/// Where a service exports its numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
    path: String,
}

impl Endpoint {
    /// `http://host:port/path`; without a path it is `/metrics`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|_| "it is no URL".to_owned())?;
        if uri.scheme_str() != Some("http") {
            return Err("it must begin with http://".to_owned());
        }
        let authority = uri.authority().ok_or("it names no host")?;
        if authority.as_str().contains('@') {
            return Err("a user or a password is not sent".to_owned());
        }
        let path = match uri.path_and_query().map(|path| path.as_str()) {
            None | Some("/") => "/metrics",
            Some(path) => path,
        };
        Ok(Self {
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(80),
            path: path.to_owned(),
        })
    }

    /// Gets what the service exports about locks.
    pub(crate) async fn fetch(&self) -> Result<Vec<Series>, String> {
        match tokio::time::timeout(PATIENCE, self.ask()).await {
            Ok(answer) => text::parse(&answer?),
            Err(_) => Err(format!("no answer within {}s", PATIENCE.as_secs())),
        }
    }

    async fn ask(&self) -> Result<String, String> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let opened = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = opened.map_err(|error| error.to_string())?;
        let request = Request::get(&self.path)
            .header(HOST, format!("{}:{}", self.host, self.port))
            .header(ACCEPT, "text/plain;version=0.0.4")
            .header(CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let exchange = async {
            let answer = sender.send_request(request).await;
            let answer = answer.map_err(|error| error.to_string())?;
            if !answer.status().is_success() {
                return Err(format!("it answers {}", answer.status()));
            }
            let body = Limited::new(answer.into_body(), MOST).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            String::from_utf8(body.into()).map_err(|_| "its answer is no text".to_owned())
        };
        // When the connection ends, `exchange` still has to return what was read. So this never
        // completes.
        let driver = async {
            let _ = connection.await;
            pending::<Infallible>().await
        };
        tokio::select! {
            answer = exchange => answer,
            never = driver => match never {},
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked() {
        for (text, host, port, path) in [
            ("http://web-1", "web-1", 80, "/metrics"),
            ("http://web-1:9000/", "web-1", 9000, "/metrics"),
            ("http://[::1]:9000/prom?a=b", "[::1]", 9000, "/prom?a=b"),
        ] {
            let endpoint = Endpoint::parse(text).expect(text);
            let (host, path) = (host.to_owned(), path.to_owned());
            assert_eq!(endpoint, Endpoint { host, port, path });
        }
        for (text, reason) in [
            ("https://web-1", "http://"),
            ("stock:", "http://"),
            ("http://user:word@web-1", "password"),
            ("", "URL"),
        ] {
            let error = Endpoint::parse(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains("word@"), "{error}");
        }
    }
}
