//! What the locks of the multi-process tests protect: a counter behind TCP that trusts nobody. It
//! refuses a worker with an older token than an earlier one, and keeps the history that shows
//! whether the lock worked.

mod client;
mod history;

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::visited::Visited;
pub use client::{Answer, Outdated, Section, Visit, now, report};
use history::Entry;
pub use history::History;

/// The server, in the process of the test.
#[derive(Debug)]
pub struct Resource {
    server: Visited,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    history: History,
    /// The workers whose reads are answered later.
    held_back: HashSet<String>,
    /// The connected workers, by their ports.
    visitors: HashMap<u16, Visitor>,
}

#[derive(Debug, Default)]
struct Visitor {
    /// The number of its requests that have arrived.
    requests: usize,
    /// The token with which it entered, if it did.
    token: Option<u64>,
}

impl Resource {
    /// Starts the server with the value 0.
    pub fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let serves = Arc::clone(&shared);
        let server = Visited::by(move |stream| serves.serve(stream));
        Self { server, shared }
    }

    /// The address for the workers.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Makes `worker` wait for the answer to its next read, inside its critical section, until
    /// [`answer`](Self::answer).
    pub fn hold_back(&self, worker: &str) {
        self.shared.lock().held_back.insert(worker.to_owned());
    }

    /// Ends [`hold_back`](Self::hold_back).
    pub fn answer(&self, worker: &str) {
        self.shared.lock().held_back.remove(worker);
        self.shared.changed.notify_all();
    }

    /// From now on, until [`resumed`](Self::resumed), `worker` does nothing: it is stopped or
    /// dead, and others may enter although it never left.
    pub fn suspended(&self, worker: &str) {
        self.stopped(worker, Duration::ZERO);
    }

    /// The same, but its leases last for so long at least: others may enter after that, and if it
    /// goes on before, it has no excuse.
    pub fn stopped(&self, worker: &str, leases_last: Duration) {
        self.shared.lock().history.stopped(worker, leases_last);
    }

    /// Ends [`suspended`](Self::suspended).
    pub fn resumed(&self, worker: &str) {
        self.shared.lock().history.resumed(worker, now());
    }

    /// From now on, until [`knows`](Self::knows), the store may have forgotten what it granted,
    /// and tokens may begin again.
    pub fn doubts(&self) {
        self.shared.lock().history.doubts();
    }

    /// Ends [`doubts`](Self::doubts). If the store had not forgotten anything, what was excused
    /// meanwhile is not.
    pub fn knows(&self, forgot: bool) {
        self.shared.lock().history.knows(forgot);
    }

    /// From now on, until this is called with `false`, leases may end before their time:
    /// bodies may overlap, and tokens rise as ever.
    pub fn ends_leases(&self, ends: bool) {
        self.shared.lock().history.ends_leases(ends);
    }

    /// The counter's value.
    pub fn value(&self) -> u64 {
        self.shared.lock().history.value()
    }

    /// How many times somebody has entered.
    pub fn entries(&self) -> u64 {
        self.shared.lock().history.entries()
    }

    /// The history so far.
    pub fn history(&self) -> History {
        self.shared.lock().history.clone()
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.lock().held_back.clear();
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the resource's state")
    }

    /// Serves one client until it goes away. The thread of the client then ends.
    fn serve(&self, stream: &TcpStream) {
        let Ok(port) = stream.peer_addr().map(|peer| peer.port()) else {
            return;
        };
        self.lock().visitors.insert(port, Visitor::default());
        self.answer_all(stream, port);
        self.lock().visitors.remove(&port);
    }

    fn answer_all(&self, stream: &TcpStream, port: u16) {
        let mut writer = stream;
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // In one piece: a second piece would wait for an acknowledgement.
            let answer = self.answer_to(&line, port) + "\n";
            if writer.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// A request is `moment worker token word [rest]`.
    fn answer_to(&self, line: &str, port: u16) -> String {
        let mut words = line.splitn(5, ' ');
        let mut word = || words.next().unwrap_or_default();
        let sent = word().parse().expect("a moment");
        assert!(sent <= now(), "another clock than ours: {line:?}");
        let (worker, token, verb, rest) = (word(), word(), word(), word());
        let token = token.parse().expect("a token");

        let mut state = self.lock();
        state.visitors.entry(port).or_default().requests += 1;
        self.changed.notify_all();
        state.history.hears_what_was_sent_at(sent);
        let answer = match verb {
            "enter" => {
                let answer = state.history.enter(worker, token, entry(rest));
                state.visitors.entry(port).or_default().token = answer.ok();
                answer
            }
            "read" => {
                // The answer belongs to the moment of the request, however late it is sent.
                let answer = state.history.read(worker, token);
                while state.held_back.contains(worker) {
                    state = self.changed.wait(state).expect("the resource's state");
                }
                answer
            }
            "write" => state
                .history
                .write(worker, token, rest.parse().expect("a number")),
            "leave" => state.history.leave(worker, token),
            "held" => {
                let moment = rest.parse().expect("a moment");
                state.history.held(worker, token, moment);
                Ok(0)
            }
            "gone" => {
                self.hear_out(state, rest);
                Ok(0)
            }
            "report" => {
                state.history.report(worker, rest);
                Ok(0)
            }
            _ => panic!("unknown request {line:?}"),
        };
        match answer {
            Ok(value) => format!("ok {value}"),
            Err(newest) => format!("refused {newest}"),
        }
    }

    /// `who`: the port of a client that has gone, and the number of requests it has sent. These
    /// are awaited first.
    fn hear_out(&self, mut state: MutexGuard<'_, State>, who: &str) {
        let (port, requests) = who.split_once(' ').expect("a port and a number");
        let port = port.parse::<u16>().expect("a port");
        let requests = requests.parse::<usize>().expect("a number");
        loop {
            let visitor = state.visitors.get(&port);
            if visitor.map_or(0, |visitor| visitor.requests) >= requests {
                break;
            }
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            state = self.changed.wait(state).expect("the resource's state");
        }
        let token = state.visitors.get(&port).and_then(|visitor| visitor.token);
        if let Some(token) = token {
            state.history.gone(token);
        }
    }
}

/// `[read|write [asked [goes-on|ends [permits]]]]`.
fn entry(text: &str) -> Entry {
    let mut words = text.split_whitespace();
    Entry {
        reads: words.next() == Some("read"),
        asked: words.next().map(|moment| moment.parse().expect("a moment")),
        goes_on: words.next() == Some("goes-on"),
        permits: words
            .next()
            .map(|permits| permits.parse().expect("a number"))
            .filter(|permits| *permits > 0),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::{Resource, Section};

    /// The body is dropped after each step, also before it knows its token.
    #[tokio::test]
    async fn who_comes_after_a_body_was_dropped_does_not_overlap_it() {
        let resource = Resource::start();
        for steps in (0..10).cycle().take(200) {
            let mut body = Box::pin(async {
                let section = Section::enter(resource.address(), "a", 0).await;
                let mut section = section.expect("the resource").expect("its turn");
                while section.read().await.is_ok() {}
            });
            let mut left = steps;
            poll_fn(|context| {
                let is_over = left == 0 || body.as_mut().poll(context).is_ready();
                left -= usize::from(!is_over);
                if is_over {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            drop(body);
            let section = Section::enter(resource.address(), "b", 0).await;
            let section = section.expect("the resource").expect("its turn");
            let left = section.leave().await.expect("the resource");
            left.expect("its turn");
        }
        resource.history().check();
    }

    /// Its answer is held back until after it is dropped.
    #[tokio::test]
    async fn a_body_that_waits_for_an_answer_can_be_dropped() {
        let resource = Resource::start();
        resource.hold_back("a");
        let section = Section::enter(resource.address(), "a", 64).await;
        let mut section = section.expect("the resource").expect("its turn");
        let read = timeout(Duration::from_millis(10), section.read()).await;
        read.expect_err("nobody answers");
        drop(section);
        assert!(!resource.history().is_inside("a"));
    }
}
