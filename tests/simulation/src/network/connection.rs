//! One connection of a process to a server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::weather::Weather;
use super::{LATEST, Pushed, SENT_AGAIN, Server, Service};
use crate::world::{At, Flag, ProcessId};

/// The connection broke, and says so.
#[derive(Debug)]
pub(crate) struct Broken;

pub(crate) struct Connection<S: Service> {
    server: Arc<Server<S>>,
    pub(crate) process: ProcessId,
    number: u64,
    /// The start of the server that it belongs to, and how often connections had been
    /// cut.
    start: (u32, u32),
    state: Mutex<State>,
    /// What was sent and not run. Each of these arrives once, and then the first of them is run: a
    /// server that stands still for longer than it seemed does not put one behind another.
    there: Mutex<VecDeque<Sent<S>>>,
    /// When the last that is on its way to the client arrives.
    last_back: LastBack,
    /// The client knows that it broke.
    broken: Flag,
}

/// When a command was sent, and who waits for its answer.
type Sent<S> = (
    At,
    <S as Service>::Command,
    oneshot::Sender<<S as Service>::Answer>,
);

/// What comes back over one connection comes in order.
#[derive(Clone, Default)]
pub(super) struct LastBack(Arc<Mutex<At>>);

impl LastBack {
    /// When this arrives that would at that time.
    pub(super) fn comes_behind(&self, at: At) -> At {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = last.max(at);
        *last
    }
}

#[derive(Default)]
struct State {
    /// The client has given it up.
    closed: bool,
    /// Since when it is broken in truth: what is sent from then on is lost.
    dead: Option<At>,
    /// Its client does not hear of that.
    silent: bool,
    last_there: At,
}

impl<S: Service> Connection<S> {
    /// A new one. `None`: nobody is there.
    pub(crate) fn open(server: &Arc<Server<S>>, process: ProcessId) -> Option<Arc<Self>> {
        if server.is_down() {
            return None;
        }
        Some(Arc::new(Self {
            process,
            number: server.next_connection(),
            start: (server.starts(), server.cuts(process)),
            server: Arc::clone(server),
            state: Mutex::default(),
            there: Mutex::default(),
            last_back: LastBack::default(),
            broken: Flag::default(),
        }))
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.state().closed && !self.broken.is_set()
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// It is used no more, and nobody hears what comes back.
    pub(crate) fn close(&self) {
        self.state().closed = true;
    }

    /// Sends a command, here and now.
    pub(crate) fn send(
        self: &Arc<Self>,
        command: S::Command,
    ) -> impl Future<Output = Result<S::Answer, Broken>> + Send + use<S> {
        let (tell, answer) = oneshot::channel();
        let world = &self.server.world;
        let weather = self.server.weather(self.process);
        let sent = world.now();
        let breaks = Weather::meets(weather.loses_requests, world);
        let mut arrives = sent + weather.delay(world);
        if weather.silent_there > sent {
            // The longer it was silent, the longer it takes until it is sent again.
            let most = (weather.silent_there - sent).min(SENT_AGAIN);
            let again = world.between(Duration::ZERO, most);
            arrives = arrives.max(weather.silent_there + again);
        } else if breaks && world.happens(500) {
            arrives += world.between(Duration::ZERO, LATEST);
        }
        let arrives = {
            let mut state = self.state();
            if state.silent {
                self.server.is_sent_in_vain(self.process);
            }
            state.last_there = state.last_there.max(arrives);
            state.last_there
        };
        world.log(|| {
            format!(
                "{:?} → {:?}/{}: {command:?}",
                self.process, self.server.id, self.number
            )
        });
        self.there().push_back((sent, command, tell));
        let this = Arc::clone(self);
        world.at(arrives, move || this.arrives());
        if breaks {
            self.state()
                .dead
                .get_or_insert(sent + Duration::from_nanos(1));
            self.breaks(world.happens(500));
        }
        let this = Arc::clone(self);
        let mut answer = answer;
        async move {
            tokio::select! {
                biased;
                answered = &mut answer => match answered {
                    Ok(answer) => Ok(answer),
                    // It will not come. Who waits finds out by itself.
                    Err(_) => { this.until_broken().await; Err(Broken) }
                },
                () = this.until_broken() => Err(Broken),
            }
        }
    }

    fn there(&self) -> MutexGuard<'_, VecDeque<Sent<S>>> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrives(self: Arc<Self>) {
        if let Some(until) = self.server.stands_until() {
            let this = Arc::clone(&self);
            return self.server.world.at(until, move || this.arrives());
        }
        let first = self.there().pop_front();
        if let Some((sent, command, tell)) = first {
            self.arrived(sent, command, tell);
        }
    }

    fn arrived(self: Arc<Self>, sent: At, command: S::Command, tell: oneshot::Sender<S::Answer>) {
        let (server, world) = (&self.server, &self.server.world);
        let now = world.now();
        let (gone, lost) = {
            let state = self.state();
            let gone = state.closed || self.broken.is_set();
            (gone, state.dead.is_some_and(|dead| sent >= dead))
        };
        let lossy = now > sent + LATEST;
        if lost {
            return;
        }
        if self.start != (server.starts(), server.cuts(self.process))
            || server.is_down()
            || (gone && lossy)
        {
            return self.breaks(false);
        }
        // Another half of what its connection has left behind is lost on the way.
        if gone && world.happens(400) {
            return;
        }
        let weather = server.weather(self.process);
        let mut answer = server.run(command.clone());
        if Weather::meets(weather.doubles, world) {
            world.log(|| format!("{:?} runs it twice", server.id));
            answer = server.run(command);
        }
        world.log(|| {
            format!(
                "{:?}/{} → {:?}: {answer:?}",
                server.id, self.number, self.process
            )
        });
        if Weather::meets(weather.loses_answers, world) {
            return self.breaks(world.happens(300));
        }
        let arrives = (now + weather.delay(world)).max(weather.silent_back);
        let arrives = self.last_back.comes_behind(arrives);
        let this = Arc::clone(&self);
        world.at(arrives, move || {
            if this.is_open() {
                this.server.is_heard(this.process);
                let _ = tell.send(answer);
            }
        });
    }

    /// It breaks: silently, or its client hears of it.
    pub(crate) fn breaks(self: &Arc<Self>, silently: bool) {
        let world = &self.server.world;
        world.log(|| {
            format!(
                "{:?}/{} breaks, silently: {silently}",
                self.server.id, self.number
            )
        });
        self.server.is_deaf(self.process, self.number);
        {
            let mut state = self.state();
            state.dead.get_or_insert(world.now());
            state.silent = silently;
        }
        if silently {
            return;
        }
        let this = Arc::clone(self);
        let weather = self.server.weather(self.process);
        let hears = (world.now() + weather.delay(world)).max(weather.silent_back);
        world.at(hears, move || {
            this.broken.set(true);
        });
    }

    pub(crate) async fn until_broken(&self) {
        self.broken.until_set().await;
    }

    /// What the server says by itself comes over this connection from now on.
    pub(crate) fn listen(&self) -> mpsc::UnboundedReceiver<Pushed> {
        let (ear, pushed) = mpsc::unbounded_channel();
        let behind = self.last_back.clone();
        self.server
            .listens(self.process, self.number, (ear, behind));
        pushed
    }

    /// How long it takes to make one.
    pub(crate) fn handshake(server: &Server<S>, process: ProcessId) -> Duration {
        let weather = server.weather(process);
        let until = weather.silent_there.max(weather.silent_back);
        let trip = weather.delay(&server.world) + weather.delay(&server.world);
        (server.world.now() + trip).max(until) - server.world.now()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
