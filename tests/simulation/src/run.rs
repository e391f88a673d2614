//! One run, from its seed.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::checker::{nothing_is_held, nothing_is_left};
use crate::faults::{self, Fault};
use crate::history::{Counts, History, Promises};
use crate::scenario::{Program, Size};
use crate::stores::{Kind, Stores};
use crate::world::{At, Stopped, World};

/// What has come of a run.
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    /// Where a run has ended by a panic, only what was asked for.
    pub(crate) kind: Option<Kind>,
    pub(crate) steps: u64,
    pub(crate) faults: Vec<Fault>,
    pub(crate) counts: Counts,
    pub(crate) violations: Vec<String>,
}

impl Outcome {
    /// Of a run that ended in a panic.
    pub(crate) fn panicked(seed: u64, kind: Option<Kind>, payload: &(dyn Any + Send)) -> Self {
        Self {
            seed,
            kind,
            steps: 0,
            faults: Vec::new(),
            counts: Counts::default(),
            violations: vec![format!("it panicked: {}", said(payload))],
        }
    }
}

/// What a panic said.
pub(crate) fn said(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("nothing")
}

/// Processes, calls and faults of a run.
const LEAST: (u32, u64, usize) = (3, 200, 10);

/// Before and after these nothing goes wrong.
const FAULTS: (At, At) = (Duration::from_secs(3), Duration::from_secs(13));
const WORKS: At = Duration::from_secs(19);

/// So long it takes to the next end of a call at the most, when nothing is wrong any
/// more.
const ENDS: Duration = Duration::from_secs(60);
/// After this, nothing can be on its way any more.
const RESTS: Duration = Duration::from_secs(13);

pub(crate) fn run(seed: u64, only: Option<Kind>, runtime: &Handle, trace: bool) -> Outcome {
    let world = World::new(seed, runtime.clone(), trace);
    let kinds = Kind::ALL;
    let drawn = kinds[world.draw(|chance| chance.usize(..kinds.len()))];
    let kind = only.unwrap_or(drawn);
    let size = Size::draw(&world, WORKS);
    let stores = Stores::start(kind, &world);
    let size = Size {
        ttl: size.ttl.min(kind.longest_ttl()),
        ..size
    };
    let promises = Promises {
        keys: size.keys,
        handoff: size.handoff,
        fair: kind.is_fair(),
        hands_on: kind.hands_on(),
        wakes_late: kind.wakes_late(),
        wakes: kind.wakes_within(),
    };
    let history = History::new(&world, stores.witness(), promises);
    let program = Program::new(size, &history, stores);
    world.log(|| format!("seed {seed}: {kind:?}, {size:?}"));
    program.begin();
    history.watch();
    // Of several servers, each has as many as it needs to be met.
    let number = world.draw(|chance| chance.usize(LEAST.2..=16)) * history.store.blocking();
    faults::plan(&program, number, FAULTS.0, FAULTS.1);
    for (phase, what) in [
        ("the calls", None),
        (
            "taking each lock",
            Some(Program::take_all as fn(&Arc<Program>)),
        ),
        ("the shutdown", Some(Program::shut_down)),
    ] {
        world.log(|| format!("{phase} begins"));
        if let Some(what) = what {
            what(&program);
        }
        let begun = world.now().max(WORKS);
        let ended = loop {
            let since = history.last_end().unwrap_or_default().max(begun);
            match world.run_until(since + ENDS, || program.is_done()) {
                Err(Stopped::Late) if history.last_end().is_some_and(|end| end > since) => {}
                ended => break ended,
            }
        };
        if let Err(stopped) = ended {
            history.violation(format!(
                "{phase} did not end: {stopped:?}; {}",
                unended(&history)
            ));
            break;
        }
    }
    if history.state().violations.is_empty() {
        nothing_is_held(&history);
        let _ = world.run_until(world.now() + RESTS + size.ttl, || false);
        nothing_is_left(&history, &program.all_processes());
    }
    let (sections, faults) = {
        let state = history.state();
        (state.counts.sections, state.faults.len())
    };
    if size.processes < LEAST.0 || sections < LEAST.1 || faults < LEAST.2 {
        history.violation(format!(
            "it was too small: {} processes, {sections} calls, {faults} faults",
            size.processes
        ));
    }
    program.end();
    world.clear();
    let state = history.state();
    Outcome {
        seed,
        kind: Some(kind),
        steps: world.steps(),
        faults: state.faults.clone(),
        counts: state.counts,
        violations: state.violations.clone(),
    }
}

fn unended(history: &History) -> String {
    let state = history.state();
    let calls = state
        .calls
        .iter()
        .enumerate()
        .filter(|(_, call)| call.ended.is_none());
    calls
        .map(|(number, call)| format!("call {number}: {call:?}"))
        .collect::<Vec<_>>()
        .join(", ")
}
