//! The client of the resource, for workers.

use std::io::{self, Read as _, Write as _};
use std::net::{self, SocketAddr};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

use crate::support::wait::HANG;

/// One critical section at the resource, over its own connection.
#[derive(Debug)]
pub struct Section {
    resource: SocketAddr,
    stream: BufStream<TcpStream>,
    worker: String,
    token: u64,
    /// The number of requests that were sent.
    requests: usize,
    /// The resource does not have to be told that it has ended.
    done: bool,
}

/// A body that is dropped reports that it does nothing any more, before its lock can be handed
/// on: the resource knows it when this returns. The report uses its own connection, since an
/// answer may be held back, and says how many requests were sent before it.
impl Drop for Section {
    fn drop(&mut self) {
        if !self.done {
            // A report that does not arrive counts against the worker.
            let _ = self.is_gone();
        }
    }
}

/// The answer of the resource: a value, or that the token is too old.
pub type Answer = Result<u64, Outdated>;

/// How a worker enters.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Visit<'a> {
    /// The name of the worker.
    pub worker: &'a str,
    /// The token of its lock; 0 if it has none.
    pub token: u64,
    /// Other readers may be inside too.
    pub reads: bool,
    /// When it asked for its lock, by [`now`]. A later stop is no excuse.
    pub asked: u128,
    /// Its body goes on after a loss, and reports when it was [held](Section::held).
    pub goes_on: bool,
    /// If it has one of so many permits: nothing but that is asked of it.
    pub permits: Option<usize>,
}

impl<'a> Visit<'a> {
    /// A writer that asked for its lock at that time, by [`now`].
    pub const fn new(worker: &'a str, token: u64, asked: u128) -> Self {
        Self {
            worker,
            token,
            reads: false,
            asked,
            goes_on: false,
            permits: None,
        }
    }

    /// Sets how many may be inside at once, each with a permit.
    #[must_use]
    pub const fn permits(mut self, permits: Option<usize>) -> Self {
        self.permits = permits;
        self
    }

    /// Sets whether its body goes on after a loss.
    #[must_use]
    pub const fn goes_on(mut self, goes_on: bool) -> Self {
        self.goes_on = goes_on;
        self
    }

    /// Sets whether it is a reader.
    #[must_use]
    pub const fn reads(mut self, reads: bool) -> Self {
        self.reads = reads;
        self
    }
}

/// The resource has seen this newer token.
#[derive(Clone, Copy, Debug)]
pub struct Outdated(pub u64);

impl Section {
    /// Reports that `worker` is inside now, with the token of its lock.
    pub async fn enter(
        resource: SocketAddr,
        worker: &str,
        token: u64,
    ) -> io::Result<Result<Self, Outdated>> {
        Self::come(resource, worker, token, "enter").await
    }

    /// Like [`enter`](Self::enter), with more information.
    pub async fn visit(
        resource: SocketAddr,
        visit: Visit<'_>,
    ) -> io::Result<Result<Self, Outdated>> {
        let mode = if visit.reads { "read" } else { "write" };
        let goes_on = if visit.goes_on { "goes-on" } else { "ends" };
        let permits = visit.permits.unwrap_or_default();
        let enter = format!("enter {mode} {} {goes_on} {permits}", visit.asked);
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

    /// Sets the value. Only one more than before is correct.
    pub async fn write(&mut self, value: u64) -> io::Result<Answer> {
        self.ask(&format!("write {value}")).await
    }

    /// Reports that `worker` was told at this moment, by [`now`], that it holds its lock.
    pub async fn held(&mut self, moment: u128) -> io::Result<()> {
        self.ask(&format!("held {moment}")).await.map(drop)
    }

    /// Reports that `worker` leaves.
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

/// The time in microseconds, by the clock that all processes of a machine share. A request may
/// arrive after another worker has entered, although it was sent before.
pub fn now() -> u128 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a monotonic clock");
    Duration::from(now).as_micros()
}

/// Reports something to the test, outside of any critical section.
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
