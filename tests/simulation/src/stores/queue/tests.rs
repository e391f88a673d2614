use std::sync::Arc;
use std::time::Duration;

use dlock::backend::{Mode, Owner, Request};
use tokio::runtime::{Builder, Runtime};

use super::QueueServer;
use super::server::{Answer, Asked, CLAIM, Command};
use crate::network::{Machine, Server, ServerId, Witness};
use crate::world::{ProcessId, World};

const KEY: &str = "stock:0";
const TTL: Duration = Duration::from_secs(30);
const LAG: Duration = Duration::from_millis(100);

/// One who has the lock, one who waits for it, and a server.
struct Scene {
    world: Arc<World>,
    server: Arc<Server<QueueServer>>,
    first: Asked,
    second: Asked,
    _runtime: Runtime,
}

impl Scene {
    fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .build()
            .expect("a runtime of one thread");
        let world = World::new(1, runtime.handle().clone(), false);
        let asked = |process| Asked {
            owner: Request::new(KEY, Mode::Write, TTL).owner,
            process: ProcessId(process),
            mode: Mode::Write,
            ttl: TTL,
        };
        let scene = Self {
            server: Server::start(ServerId(0), &world, QueueServer::default()),
            world,
            first: asked(1),
            second: asked(2),
            _runtime: runtime,
        };
        assert!(matches!(scene.ask(&scene.first), Answer::Granted(_)));
        assert!(matches!(scene.ask(&scene.second), Answer::Queued));
        scene
    }

    fn ask(&self, asked: &Asked) -> Answer {
        self.server.run(Command::Ask {
            key: KEY.into(),
            asked: asked.clone(),
            waits: true,
            beat: true,
        })
    }

    fn release(&self, owner: Owner) {
        self.server.run(Command::Release {
            key: KEY.into(),
            owner,
            place_too: true,
            done: None,
        });
    }

    fn renew(&self, owner: Owner) -> bool {
        let renewed = self.server.run(Command::Renew(KEY.into(), owner, TTL));
        matches!(renewed, Answer::Done(true))
    }

    /// The second has the lock, and the server forgets that it was given back to it.
    fn forgets(&self) {
        Arc::clone(&self.server).lose_writes(LAG, Duration::ZERO);
        self.release(self.first.owner);
        assert!(matches!(self.ask(&self.second), Answer::Granted(_)));
        let _ = self.world.run_until(LAG, || false);
        let holders = self.server.holders(KEY).expect("it decides alone");
        assert_eq!(holders[0].owner, self.first.owner);
    }

    /// For how long from now on the second takes the lock for its own.
    fn thinks_it_has(&self) -> Duration {
        let until = self.server.thinks_it_has(KEY, self.second.process);
        until.saturating_sub(self.world.now())
    }
}

#[test]
fn who_is_granted_a_forgotten_lease_once_more_knows_nothing_new() {
    let scene = Scene::new();
    scene.forgets();
    // Its place comes to the front again, and it is told over a connection that is gone.
    scene.release(scene.first.owner);
    assert!(scene.thinks_it_has() > CLAIM * 9);
}

/// As by Redis's script: a lease that was answered is its owner's to give back.
#[test]
fn what_was_claimed_is_not_disowned() {
    let holder = |scene: &Scene| scene.server.holders(KEY).expect("it decides alone")[0].owner;
    let disown = |scene: &Scene, owner| {
        scene.server.run(Command::Disown(KEY.into(), owner));
    };
    let scene = Scene::new();
    disown(&scene, scene.first.owner);
    assert_eq!(holder(&scene), scene.first.owner);
    scene.release(scene.first.owner);
    assert!(matches!(scene.ask(&scene.second), Answer::Granted(_)));
    disown(&scene, scene.second.owner);
    assert_eq!(holder(&scene), scene.second.owner);

    let scene = Scene::new();
    scene.release(scene.first.owner);
    disown(&scene, scene.second.owner);
    assert!(
        scene
            .server
            .holders(KEY)
            .expect("it decides alone")
            .is_empty()
    );
}

#[test]
fn a_lease_is_forgotten_from_when_it_ends_too_soon() {
    let scene = Scene::new();
    scene.release(scene.first.owner);
    Arc::clone(&scene.server).lose_writes(LAG, Duration::ZERO);
    assert!(matches!(scene.ask(&scene.second), Answer::Granted(_)));
    let _ = scene.world.run_until(LAG, || false);
    let holders = scene.server.holders(KEY).expect("it decides alone");
    assert_eq!(holders[0].owner, scene.second.owner);
    assert!(holders[0].lasts < Some(CLAIM), "{holders:?}");
    assert!(scene.thinks_it_has() > CLAIM * 9);
    assert!(scene.renew(scene.second.owner));
    assert_eq!(scene.thinks_it_has(), Duration::ZERO);
}

#[test]
fn who_asks_knows_whether_it_has_a_lease() {
    for granted_again in [true, false] {
        let scene = Scene::new();
        scene.forgets();
        if granted_again {
            scene.release(scene.first.owner);
        }
        assert_eq!(scene.renew(scene.second.owner), granted_again);
        assert_eq!(scene.thinks_it_has(), Duration::ZERO);
    }
}
