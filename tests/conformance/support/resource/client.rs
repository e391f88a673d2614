//! The resource as a worker sees it.

use std::io::{self, Read as _, Write as _};
use std::net::{self, SocketAddr};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

use crate::support::wait::HANG;

/// One critical section at the resource, over a connection of its own.
#[derive(Debug)]
pub struct Section {
    resource: SocketAddr,
    stream: BufStream<TcpStream>,
    worker: String,
    token: u64,
    /// How many requests are on their way to it, or were.
    requests: usize,
    /// Nobody need be told that it is over.
    done: bool,
}

/// A body that is dropped does nothing any more, and says so before its lock can be
/// given on: the resource has heard of it when this returns. It comes over a connection
/// of its own, as an answer may be held back, and tells which requests go before it.
impl Drop for Section {
    fn drop(&mut self) {
        if !self.done {
            // What is not heard counts against it.
            let _ = self.is_gone();
        }
    }
}

/// What the resource says: a value, or that the token is too old.
pub type Answer = Result<u64, Outdated>;

/// How somebody comes in.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'a> {
    /// Who.
    pub worker: &'a str,
    /// What its lock gave it; 0 if that is nothing.
    pub token: u64,
    /// Others who read may be inside too.
    pub reads: bool,
    /// When it asked for its lock, by [`now`]: if it is stopped later, it is no excuse.
    pub asked: u128,
}

/// The resource has seen this newer token.
#[derive(Clone, Copy, Debug)]
pub struct Outdated(pub u64);

impl Section {
    /// Says that `worker` is inside now, with what its lock gave it.
    pub async fn enter(
        resource: SocketAddr,
        worker: &str,
        token: u64,
    ) -> io::Result<Result<Self, Outdated>> {
        Self::come(resource, worker, token, "enter").await
    }

    /// The same, and says more of itself.
    pub async fn visit(
        resource: SocketAddr,
        visit: Visit<'_>,
    ) -> io::Result<Result<Self, Outdated>> {
        let mode = if visit.reads { "read" } else { "write" };
        let enter = format!("enter {mode} {}", visit.asked);
        Self::come(resource, visit.worker, visit.token, &enter).await
    }

    async fn come(
        resource: SocketAddr,
        worker: &str,
        token: u64,
        enter: &str,
    ) -> io::Result<Result<Self, Outdated>> {
        let stream = BufStream::new(TcpStream::connect(resource).await?);
        let mut section = Self {
            resource,
            stream,
            worker: worker.to_owned(),
            token,
            requests: 0,
            done: false,
        };
        let entered = section.ask(enter).await?;
        Ok(entered.map(|token| {
            section.token = token;
            section
        }))
    }

    /// The counter's value.
    pub async fn read(&mut self) -> io::Result<Answer> {
        self.ask("read").await
    }

    /// Sets it, which only one more than before is a sound thing to do.
    pub async fn write(&mut self, value: u64) -> io::Result<Answer> {
        self.ask(&format!("write {value}")).await
    }

    /// Says that `worker` comes out.
    pub async fn leave(mut self) -> io::Result<Answer> {
        let left = self.ask("leave").await;
        self.done = left.is_ok();
        left
    }

    fn is_gone(&self) -> io::Result<()> {
        let mut stream = net::TcpStream::connect(self.resource)?;
        stream.set_read_timeout(Some(HANG))?;
        let port = self.stream.get_ref().local_addr()?.port();
        let line = self.line(&format!("gone {port} {}", self.requests));
        stream.write_all(line.as_bytes())?;
        stream.read_exact(&mut [0])
    }

    fn line(&self, request: &str) -> String {
        format!("{} {} {} {request}\n", now(), self.worker, self.token)
    }

    async fn ask(&mut self, request: &str) -> io::Result<Answer> {
        let line = self.line(request);
        self.stream.write_all(line.as_bytes()).await?;
        self.stream.flush().await?;
        self.requests += 1;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        let number = |text: &str| {
            text.trim()
                .parse()
                .map_err(|_| io::Error::other(format!("the resource said {answer:?}")))
        };
        match answer.split_once(' ') {
            Some(("ok", value)) => Ok(Ok(number(value)?)),
            Some(("refused", newest)) => Ok(Err(Outdated(number(newest)?))),
            _ => Err(io::Error::other(format!("the resource said {answer:?}"))),
        }
    }
}

/// Now, in microseconds of the clock that all processes of a machine share: a request
/// that was sent before somebody came in may be heard after it.
pub fn now() -> u128 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a monotonic clock");
    Duration::from(now).as_micros()
}

/// Tells the test something, outside any critical section.
pub async fn report(resource: SocketAddr, worker: &str, text: &str) -> io::Result<()> {
    let stream = BufStream::new(TcpStream::connect(resource).await?);
    let mut section = Section {
        resource,
        stream,
        worker: worker.to_owned(),
        token: 0,
        requests: 0,
        done: true,
    };
    section.ask(&format!("report {text}")).await.map(|_| ())
}
