use std::sync::Arc;
use std::time::Duration;

use dlock::backend::memory::Memory;
use dlock::backend::{Mode, Owner, Request};
use dlock::{Config as LockConfig, LockError, LockManager};
use tokio::runtime::{Builder, Runtime};

use super::bounds::Bound;
use super::{nothing_is_held, nothing_is_left};
use crate::faults::Fault;
use crate::history::{History, Key, Promises, Trouble, name};
use crate::network::{Connection, LATEST, Machine, Server, ServerId};
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
        Self::of(true)
    }

    fn of(hands_on: bool) -> Self {
        let runtime = Builder::new_current_thread()
            .build()
            .expect("a runtime of one thread");
        let world = World::new(1, runtime.handle().clone(), false);
        let server = Server::start(ServerId(0), &world, QueueServer::default());
        let promises = Promises {
            keys: 1,
            handoff: 0,
            fair: true,
            hands_on,
            wakes_late: SECOND * 5 / 2,
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
        self.gives_back(owner, None);
    }

    fn gives_back(&self, owner: Owner, done: Option<Duration>) {
        self.server.run(Command::Release {
            key: name(0).into(),
            owner,
            place_too: true,
            done,
        });
    }

    fn enters(&self, process: ProcessId, token: u64) -> usize {
        self.enters_as(process, token, Mode::Write)
    }

    fn enters_as(&self, process: ProcessId, token: u64, mode: Mode) -> usize {
        let call = self.begins(process, "waits", mode);
        self.history.enters(call, process, vec![(0, token)], mode)
    }

    /// Asks for the lock, which is free, and enters.
    fn is_granted(&self, process: ProcessId) -> usize {
        let token = self.ask(0, &asked(process, Mode::Write));
        self.enters(process, token.expect("it is free"))
    }

    fn strikes(&self, fault: Fault) {
        let now = self.world.now();
        self.history.trouble(Trouble {
            fault,
            process: None,
            server: Some(ServerId(0)),
            from: now,
            to: now,
            stands: None,
            outage: false,
        });
    }

    fn begins(&self, process: ProcessId, how: &'static str, mode: Mode) -> usize {
        self.history.begins(process, &[0], how, mode)
    }

    /// A body that was to run once has the lock, is done, and gives it back so.
    fn does_once(&self, held: bool, done: Option<Duration>) {
        let first = asked(ONE, Mode::Write);
        let token = self.ask(0, &first).expect("it is free");
        let body = self.enters(ONE, token);
        self.history.returns_ok(body, SECOND, held);
        self.history.leaves(body);
        self.gives_back(first.owner, done);
    }

    /// A call of the other process ends so.
    fn is_told(&self, call: usize, error: LockError) {
        self.history.ends(call, Bound::Tries, &Err(error));
    }

    /// What is found when all has ended.
    fn ends(&self) -> usize {
        nothing_is_left(&self.history, &[]);
        self.found()
    }

    fn found(&self) -> usize {
        self.history.state().violations.len()
    }
}

/// What somebody is told of a lock that is held, or whose body has been done.
fn error(is_done: bool) -> LockError {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let manager = LockManager::connect(LockConfig::default()).await;
        let manager = manager.expect("memory connects");
        let lock = || manager.lock(name(0)).once(SECOND);
        let guard = lock().acquire().await.expect("it is free");
        let _held = match is_done {
            true => {
                guard.release_done().await.expect("it is held");
                None
            }
            false => Some(guard),
        };
        lock().try_acquire().await.expect_err("it is not free")
    })
}

/// What somebody is told of a store that does not answer.
fn outage() -> LockError {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let memory = Memory::new();
        let config = LockConfig::with_backend(memory.clone());
        let manager = LockManager::connect(config).await.expect("it is there");
        memory.faults().set_unavailable(true);
        let tried = manager.lock(name(0)).try_acquire().await;
        tried.expect_err("it is away")
    })
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
        scene.history.begins(ONE, &[0], "waits", Mode::Write);
        scene.pass(SECOND);
        scene.is_granted(OTHER);
        assert_eq!(scene.found() == 0, may_be, "{sent:?}");
    }
}

#[test]
fn what_a_connection_says_that_broke_is_no_excuse() {
    let scene = Scene::new();
    let connection = Connection::open(&scene.server, ONE).expect("it is there");
    connection.breaks(false);
    drop(connection.send(Command::Farewell(ONE)));
    scene.history.begins(ONE, &[0], "waits", Mode::Write);
    scene.pass(SECOND);
    scene.is_granted(OTHER);
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
    scene.strikes(Fault::WritesLost);

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

/// What a server still has is no excuse.
#[test]
fn a_lease_is_overlapped_only_if_it_was_forgotten() {
    for (late, may_be) in [(Duration::ZERO, true), (LAG * 2, false)] {
        let scene = Scene::new();
        let is_late = late > Duration::ZERO;
        let before = is_late.then(|| scene.is_granted(ONE));
        scene.pass(late);
        Arc::clone(&scene.server).lose_writes(LAG, Duration::ZERO);
        let body = before.unwrap_or_else(|| scene.is_granted(ONE));
        scene.pass(LAG * 2);
        let other = scene.ask(0, &asked(OTHER, Mode::Write));
        assert_eq!(other.is_some(), may_be);
        // Of another key, so that a number is there.
        let other = other.or_else(|| scene.ask(1, &asked(OTHER, Mode::Write)));
        scene.enters(OTHER, other.expect("it is free"));
        scene.history.acts(body);
        let found = scene.history.state().violations.clone();
        let overlaps = found.iter().any(|one| one.contains("goes on beside"));
        assert_eq!(!overlaps, may_be, "{found:?}");
    }
}

#[test]
fn a_token_is_that_of_a_grant() {
    let scene = Scene::new();
    let body = scene.is_granted(ONE);
    scene.history.leaves(body);
    assert_eq!(scene.found(), 0);
    scene.enters(ONE, 6400);
    assert_eq!(scene.found(), 1);
}

#[test]
fn who_has_shut_down_holds_nothing() {
    for (gives_back, found) in [(true, 0), (false, 1)] {
        let scene = Scene::new();
        let first = asked(ONE, Mode::Write);
        scene.ask(0, &first).expect("it is free");
        if gives_back {
            scene.release(first.owner);
        }
        nothing_is_held(&scene.history);
        assert_eq!(scene.found(), 0, "it may");
        scene.history.has_shut_down(ONE);
        // It may have got the lock by a command that came late.
        scene.strikes(Fault::RequestsLate);
        nothing_is_held(&scene.history);
        assert_eq!(scene.found(), 0, "it is given back in the background");
        scene.pass(LATEST + SECOND);
        nothing_is_held(&scene.history);
        assert_eq!(scene.found(), found);
    }
}

#[test]
fn no_body_goes_on_after_its_loss() {
    let scene = Scene::new();
    let body = scene.is_granted(ONE);
    scene.history.acts(body);
    assert_eq!(scene.found(), 0);
    scene.history.acts_unheld(body);
    assert_eq!(scene.found(), 1);
}

#[test]
fn an_outage_has_a_cause_that_can_have_been_one() {
    for (fault, before, may_be) in [
        (None, At::ZERO, false),
        (Some(Fault::Doubled), At::ZERO, false),
        (Some(Fault::MessagesLost), At::ZERO, false),
        (Some(Fault::AnswersLost), At::ZERO, true),
        (Some(Fault::AnswersLost), SECOND * 4, false),
    ] {
        let scene = Scene::new();
        if let Some(fault) = fault {
            scene.strikes(fault);
        }
        scene.pass(before);
        let call = scene.begins(ONE, "tries", Mode::Write);
        scene.is_told(call, outage());
        assert_eq!(scene.found() == 0, may_be, "{fault:?}, {before:?}");
    }
}

/// What the server forgot is found out by whoever has the lease then, in the same process.
#[test]
fn who_stood_still_may_be_told_late_of_an_outage() {
    for (stands, may_be) in [(Some(ONE), true), (Some(OTHER), false), (None, false)] {
        let scene = Scene::new();
        scene.strikes(Fault::AnswersLost);
        let from = scene.world.now();
        scene.pass(SECOND * 4);
        scene.history.trouble(Trouble {
            fault: Fault::CallerStands,
            process: stands,
            server: None,
            from: from + SECOND,
            to: scene.world.now(),
            stands,
            outage: false,
        });
        let call = scene.begins(ONE, "tries", Mode::Write);
        scene.is_told(call, outage());
        assert_eq!(scene.found() == 0, may_be, "{stands:?}");
    }
}

#[test]
fn a_call_works_since_its_lease_was_used_first() {
    let scene = Scene::new();
    let token = scene.ask(0, &asked(ONE, Mode::Write)).expect("it is free");
    let body = scene.enters(ONE, token);
    let since = scene.world.now();
    scene.pass(SECOND);
    scene.history.leaves(body);
    let works_since = |keys: &[(Key, u64)]| {
        let call = scene.begins(ONE, "waits", Mode::Write);
        let keys = keys.to_vec();
        let body = scene.history.enters(call, ONE, keys, Mode::Write);
        let this = scene.history.state().calls[call].clone();
        let works_since = scene.history.works_since(call, &this);
        scene.history.leaves(body);
        works_since
    };
    let fresh = scene.ask(1, &asked(ONE, Mode::Write)).expect("it is free");
    let entered = scene.world.now();
    assert_eq!(works_since(&[(1, fresh)]), entered);
    assert_eq!(works_since(&[(0, token + 1)]), since);
    // Each key has its own token.
    assert_eq!(works_since(&[(1, fresh + 1), (0, token + 2)]), since);
}

#[test]
fn a_call_ends_within_its_time() {
    enum Meanwhile {
        Held,
        Free,
        Trouble,
    }
    use Meanwhile::{Free, Held, Trouble};
    for (waits, meanwhile, may_be) in [
        (SECOND, Held, true),
        (SECOND * 11 / 10, Held, false),
        (SECOND * 3 / 2, Free, true),
        (SECOND * 8 / 5, Free, false),
        (SECOND * 3 / 2, Trouble, true),
        (SECOND * 8 / 5, Trouble, false),
    ] {
        let scene = Scene::new();
        let other = asked(OTHER, Mode::Write);
        let held = match meanwhile {
            Free => None,
            Held | Trouble => {
                let token = scene.ask(0, &other).expect("it is free");
                Some(scene.enters(OTHER, token))
            }
        };
        if let Trouble = meanwhile {
            scene.strikes(Fault::AnswersLost);
        }
        let call = scene.begins(ONE, "within", Mode::Write);
        scene.pass(waits);
        if let Some(body) = held {
            scene.history.leaves(body);
            scene.release(other.owner);
        }
        let token = scene.ask(0, &asked(ONE, Mode::Write)).expect("it is free");
        let body = scene
            .history
            .enters(call, ONE, vec![(0, token)], Mode::Write);
        scene.history.leaves(body);
        scene.history.ends(call, Bound::Within(SECOND), &Ok(()));
        assert_eq!(scene.found() == 0, may_be, "{waits:?}");
    }
}

#[test]
fn a_lock_is_left_to_the_next_when_the_first_gives_up_who_has_to_ask() {
    for hands_on in [true, false] {
        let scene = Scene::of(hands_on);
        let gives_up = scene.begins(ONE, "waits", Mode::Write);
        scene.begins(OTHER, "waits", Mode::Write);
        let before = asked(ONE, Mode::Write);
        scene.ask(0, &before).expect("it is free");
        scene.pass(LAG);
        scene.release(before.owner);
        scene.history.watch();
        scene.pass(SECOND * 6 / 10);
        scene.is_told(gives_up, error(false));
        scene.pass(SECOND * 6 / 10);
        assert_eq!(scene.found(), usize::from(hands_on), "{hands_on}");
        scene.pass(SECOND);
        assert_eq!(scene.found(), 1, "{hands_on}");
    }
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

#[test]
fn one_who_has_a_permit_beside_as_many_as_there_are_is_one_too_many() {
    for (most, may_be) in [(1, false), (2, false), (3, true)] {
        let scene = Scene::new();
        let ask = |mode| scene.ask(0, &asked(ONE, mode)).expect("there is room");
        let before = [Mode::Read, Mode::Permits(2)].map(|mode| {
            let token = ask(mode);
            scene.enters_as(ONE, token, mode)
        });
        let token = ask(Mode::Permits(3));
        let last = scene.enters_as(OTHER, token, Mode::Permits(most));
        // That it has gone is no excuse.
        scene.history.leaves(last);
        before.iter().for_each(|body| scene.history.acts(*body));
        assert_eq!(scene.found() == 0, may_be, "{most}");
    }
}

#[test]
fn who_ended_before_a_permit_was_had_does_not_count() {
    let scene = Scene::new();
    let first = asked(ONE, Mode::Permits(1));
    let token = scene.ask(0, &first).expect("it is free");
    let body = scene.enters_as(ONE, token, Mode::Permits(1));
    scene.history.acts(body);
    scene.history.leaves(body);
    scene.release(first.owner);
    let second = scene.ask(0, &asked(OTHER, Mode::Permits(1)));
    scene.enters_as(OTHER, second.expect("it is free"), Mode::Permits(1));
    assert_eq!(scene.found(), 0);
}

#[test]
fn a_permit_is_not_had_beside_a_writer() {
    let scene = Scene::new();
    let token = scene.ask(0, &asked(ONE, Mode::Permits(9)));
    let token = token.expect("it is free");
    let shared = scene.enters_as(ONE, token, Mode::Permits(9));
    let reader = scene.ask(0, &asked(OTHER, Mode::Read));
    scene.enters(OTHER, reader.expect("they share it"));
    scene.history.acts(shared);
    assert_eq!(scene.found(), 1);
}

#[test]
fn who_shares_a_lock_is_not_granted_it_after_one_who_came_later() {
    for (tokens, may_be) in [([64, 128], false), ([128, 64], true)] {
        let scene = Scene::new();
        let mode = Mode::Permits(2);
        for _ in 0..2 {
            scene.ask(0, &asked(ONE, mode)).expect("there is room");
        }
        let first = scene.begins(ONE, "has a permit", mode);
        scene.pass(SECOND);
        let later = scene.begins(OTHER, "has a permit", mode);
        for (call, process, token) in [(later, OTHER, tokens[0]), (first, ONE, tokens[1])] {
            scene.history.enters(call, process, vec![(0, token)], mode);
        }
        assert_eq!(scene.found() == 0, may_be, "{tokens:?}");
    }
}

/// Seed 20000006799: after one that gave up, the next of its process had its place, and
/// a third began a line anew.
#[test]
fn who_shares_a_lock_keeps_the_place_that_another_of_its_process_left() {
    let scene = Scene::new();
    let mode = Mode::Permits(1);
    let begins = |process| {
        let call = scene.begins(process, "has a permit", mode);
        scene.pass(SECOND);
        call
    };
    let gives_up = begins(OTHER);
    let first = begins(ONE);
    let heir = begins(OTHER);
    let busy = Err(error(false));
    scene.history.ends(gives_up, Bound::Waits, &busy);
    for _ in 0..2 {
        let shared = asked(OTHER, Mode::Permits(2));
        scene.ask(0, &shared).expect("there is room");
    }
    scene.history.enters(heir, OTHER, vec![(0, 64)], mode);
    begins(OTHER);
    let before = scene.found();
    scene.history.enters(first, ONE, vec![(0, 128)], mode);
    assert_eq!(scene.found(), before, "who came later had an older place");
}

#[test]
fn what_was_done_goes_back_with_its_mark() {
    for (done, may_be) in [(None, false), (Some(SECOND), true)] {
        let scene = Scene::new();
        scene.does_once(true, done);
        scene.pass(SECOND * 2);
        assert_eq!(scene.ends() == 0, may_be, "{done:?}");
    }
}

#[test]
fn nothing_is_marked_that_was_not_done() {
    let scene = Scene::new();
    let first = asked(ONE, Mode::Write);
    let token = scene.ask(0, &first).expect("it is free");
    let body = scene.enters(ONE, token);
    scene.history.leaves(body);
    scene.gives_back(first.owner, Some(SECOND));
    scene.pass(SECOND * 2);
    assert_eq!(scene.ends(), 1);

    let scene = Scene::new();
    // By a lease that was lost.
    scene.does_once(false, Some(SECOND));
    scene.pass(SECOND * 2);
    assert_eq!(scene.ends(), 1);
}

#[test]
fn what_is_remembered_is_not_run_again() {
    // How long after it was done, and whether it was forgotten.
    for (passes, forgotten, may_be) in [
        (SECOND / 2, false, false),
        (SECOND / 2, true, true),
        (SECOND * 2, false, true),
    ] {
        let scene = Scene::new();
        scene.does_once(true, Some(SECOND));
        scene.pass(passes);
        if forgotten {
            scene.server.run(Command::Forget(name(0).into()));
        }
        let token = scene.ask(0, &asked(OTHER, Mode::Write));
        assert_eq!(token.is_some(), may_be);
        scene.enters(OTHER, token.unwrap_or(128));
        assert_eq!(scene.found() == 0, may_be, "{passes:?}, {forgotten}");
    }
}

#[test]
fn nobody_has_it_from_who_has_done_it() {
    let scene = Scene::new();
    let token = scene.ask(0, &asked(ONE, Mode::Write)).expect("it is free");
    let body = scene.enters(ONE, token);
    scene.history.returns_ok(body, SECOND, true);
    scene.history.leaves(body);
    scene.enters(ONE, token + 1);
    // And no lock was handed over so often, but that is another check's.
    let found = scene.history.state().violations.clone();
    assert!(found.iter().any(|one| one.contains("runs by")), "{found:?}");
}

#[test]
fn what_is_told_to_be_marked_is() {
    for (done, may_be) in [
        (None, false),
        (Some(SECOND / 2), false),
        (Some(SECOND), true),
    ] {
        let scene = Scene::new();
        scene.does_once(true, done);
        scene.history.is_marked(0);
        assert_eq!(scene.found() == 0, may_be, "{done:?}");
    }
}

#[test]
fn a_call_that_ended_well_while_nothing_was_wrong_is_marked() {
    let scene = Scene::new();
    scene.does_once(true, None);
    scene.history.ends(0, Bound::Waits, &Ok(()));
    assert_eq!(scene.found(), 1);
}

#[test]
fn who_is_told_that_it_was_done_is_told_so_in_its_time() {
    for (time, passes, may_be) in [
        (None, SECOND / 2, false),
        (Some(SECOND), SECOND / 2, true),
        (Some(SECOND), SECOND * 2, false),
    ] {
        let scene = Scene::new();
        scene.does_once(true, time);
        scene.pass(passes);
        // A look of its server's.
        scene.ask(0, &asked(OTHER, Mode::Write));
        scene.pass(SECOND / 100);
        let call = scene.begins(OTHER, "tries", Mode::Write);
        scene.pass(SECOND / 100);
        scene.is_told(call, error(true));
        assert_eq!(scene.found() == 0, may_be, "{time:?}, {passes:?}");
    }
}

#[test]
fn who_asks_for_what_was_done_is_not_told_that_it_is_held() {
    let scene = Scene::new();
    scene.does_once(true, Some(SECOND * 9));
    scene.history.ends(0, Bound::Waits, &Ok(()));
    scene.pass(SECOND * 3);
    let call = scene.begins(OTHER, "tries", Mode::Write);
    scene.is_told(call, error(false));
    assert_eq!(scene.found(), 1);
}

#[test]
fn what_was_forgotten_is_not_remembered() {
    for (forgotten, may_be) in [(false, false), (true, true)] {
        let scene = Scene::new();
        scene.does_once(true, Some(SECOND * 9));
        scene.pass(SECOND);
        let began = scene.world.now();
        if forgotten {
            scene.server.run(Command::Forget(name(0).into()));
        }
        scene.history.forgets(OTHER, 0, began, &Ok(true));
        assert_eq!(scene.found() == 0, may_be);
    }
}
