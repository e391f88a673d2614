use std::sync::Arc;
use std::time::Duration;

use dlock::backend::{Mode, Owner, Request};
use tokio::runtime::{Builder, Runtime};

use crate::faults::Fault;
use crate::history::{History, Promises, Trouble, name};
use crate::network::{Connection, Machine, Server, ServerId};
use crate::stores::queue::{Answer, Asked, Command, QueueServer};
use crate::world::{At, ProcessId, World};

const ONE: ProcessId = ProcessId(1);
const OTHER: ProcessId = ProcessId(2);
const TTL: Duration = Duration::from_secs(30);
const LAG: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

struct Scene {
    world: Arc<World>,
    server: Arc<Server<QueueServer>>,
    history: Arc<History>,
    _runtime: Runtime,
}

impl Scene {
    fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .build()
            .expect("a runtime of one thread");
        let world = World::new(1, runtime.handle().clone(), false);
        let server = Server::start(ServerId(0), &world, QueueServer::default());
        let promises = Promises {
            keys: 1,
            handoff: 0,
            fair: true,
            wakes: SECOND,
        };
        Self {
            history: History::new(&world, Arc::clone(&server) as _, promises),
            world,
            server,
            _runtime: runtime,
        }
    }

    fn pass(&self, time: Duration) {
        let until = self.world.now() + time;
        // Time goes from one event to the next.
        self.world.at(until, || {});
        let _ = self.world.run_until(until, || false);
    }

    /// Asks for the lock of this key, and says with which number it was granted.
    fn ask(&self, key: u8, asked: &Asked) -> Option<u64> {
        let answer = self.server.run(Command::Ask {
            key: name(key).into(),
            asked: asked.clone(),
            waits: true,
            beat: true,
        });
        match answer {
            Answer::Granted(token) => Some(token),
            _ => None,
        }
    }

    fn release(&self, owner: Owner) {
        self.server.run(Command::Release {
            key: name(0).into(),
            owner,
            place_too: true,
        });
    }

    fn enters(&self, process: ProcessId, token: u64) -> usize {
        let call = self.history.begins(process, &[0], "waits");
        let token = vec![(0, token)];
        self.history.enters(call, process, token, false)
    }

    fn found(&self) -> usize {
        self.history.state().violations.len()
    }
}

fn asked(process: ProcessId, mode: Mode) -> Asked {
    Asked {
        owner: Request::new(name(0), mode, TTL).owner,
        process,
        mode,
        ttl: TTL,
    }
}

#[test]
fn who_asks_over_a_connection_that_broke_without_a_word_may_be_overtaken() {
    let farewell = || Command::Farewell(ONE);
    // When something was sent over it, as seen from the call.
    for (sent, may_be) in [
        (None, false),
        (Some(SECOND * 6), false),
        (Some(At::ZERO), true),
    ] {
        let scene = Scene::new();
        let connection = Connection::open(&scene.server, ONE).expect("it is there");
        connection.breaks(true);
        if let Some(before) = sent {
            drop(connection.send(farewell()));
            scene.pass(before);
        }
        scene.history.begins(ONE, &[0], "waits");
        scene.pass(SECOND);
        scene.enters(OTHER, 64);
        assert_eq!(scene.found() == 0, may_be, "{sent:?}");
    }
}

#[test]
fn what_a_connection_says_that_broke_is_no_excuse() {
    let scene = Scene::new();
    let connection = Connection::open(&scene.server, ONE).expect("it is there");
    connection.breaks(false);
    drop(connection.send(Command::Farewell(ONE)));
    scene.history.begins(ONE, &[0], "waits");
    scene.pass(SECOND);
    scene.enters(OTHER, 64);
    assert_eq!(scene.found(), 1);
}

#[test]
fn a_lock_is_used_by_a_number_from_before_a_broken_promise() {
    let scene = Scene::new();
    let (first, second) = (asked(ONE, Mode::Write), asked(OTHER, Mode::Write));
    scene.ask(0, &first).expect("it is free");
    assert_eq!(scene.ask(0, &second), None);
    Arc::clone(&scene.server).lose_writes(LAG, Duration::ZERO);
    scene.release(first.owner);
    let before = scene.ask(0, &second).expect("it is its turn");
    let body = scene.enters(OTHER, before);
    scene.pass(LAG * 2);
    scene.history.trouble(Trouble {
        fault: Fault::WritesLost,
        process: None,
        server: Some(ServerId(0)),
        from: At::ZERO,
        to: LAG,
        stands: None,
        outage: false,
    });

    // The number is that of another lock now, and this one is granted once more.
    scene.ask(1, &asked(ONE, Mode::Write)).expect("it is free");
    scene.release(first.owner);
    let again = scene.ask(0, &second).expect("it is its turn again");
    assert_ne!(again, before);
    scene.history.watch();
    scene.pass(SECOND * 10);
    scene.history.leaves(body);
    scene.pass(SECOND * 2);
    assert_eq!(scene.found(), 0);
    scene.pass(SECOND);
    assert_eq!(scene.found(), 1, "{:?}", scene.history.state().violations);
}

#[test]
fn a_number_that_no_promise_was_broken_to_is_used_by_itself() {
    let scene = Scene::new();
    let readers = [(); 2].map(|()| asked(ONE, Mode::Read));
    let [used, _] = readers.map(|reader| scene.ask(0, &reader).expect("they share it"));
    scene.enters(ONE, used);
    scene.history.watch();
    scene.pass(SECOND);
    assert_eq!(scene.found(), 1, "{:?}", scene.history.state().violations);
}
