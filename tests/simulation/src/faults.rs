//! What goes wrong, and when.

use std::sync::Arc;
use std::time::Duration;

use crate::checker::bounds::REQUEST_TIMEOUT;
use crate::history::Trouble;
use crate::network::{Machine, ServerId, Weather};
use crate::scenario::Program;
use crate::stores::Kind;
use crate::world::{At, Process, ProcessId};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    AnswersLost,
    RequestsLate,
    Doubled,
    MessagesLost,
    Slow,
    SilentThere,
    SilentBack,
    Cut,
    Restart,
    WritesLost,
    Failover,
    ServerStands,
    ClockAhead,
    ClockBack,
    Killed,
    Paused,
    CallerStands,
    ManagerStands,
}

impl Fault {
    pub(crate) const ALL: [Self; 18] = [
        Self::AnswersLost,
        Self::RequestsLate,
        Self::Doubled,
        Self::MessagesLost,
        Self::Slow,
        Self::SilentThere,
        Self::SilentBack,
        Self::Cut,
        Self::Restart,
        Self::WritesLost,
        Self::Failover,
        Self::ServerStands,
        Self::ClockAhead,
        Self::ClockBack,
        Self::Killed,
        Self::Paused,
        Self::CallerStands,
        Self::ManagerStands,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AnswersLost => "answers lost",
            Self::RequestsLate => "requests late or lost",
            Self::Doubled => "commands run twice",
            Self::MessagesLost => "messages lost",
            Self::Slow => "slow network",
            Self::SilentThere => "partition, to the server",
            Self::SilentBack => "partition, from the server",
            Self::Cut => "connections cut",
            Self::Restart => "server restarts",
            Self::WritesLost => "server loses last writes",
            Self::Failover => "failover to a lagging replica",
            Self::ServerStands => "server stands still",
            Self::ClockAhead => "server's clock ahead",
            Self::ClockBack => "server's clock back",
            Self::Killed => "process killed",
            Self::Paused => "process paused",
            Self::CallerStands => "caller's runtime stands still",
            Self::ManagerStands => "manager's thread stands still",
        }
    }

    /// Whether commands come late by it, when nobody waits for their answers any more.
    pub(crate) fn makes_late(self) -> bool {
        matches!(self, Self::RequestsLate | Self::SilentThere)
    }

    /// Whether it can befall a store of this kind.
    pub(crate) fn befalls(self, kind: Kind) -> bool {
        match self {
            Self::WritesLost => kind.loses_writes(),
            Self::Failover => kind == Kind::Queue,
            // It says nothing by itself.
            Self::MessagesLost => kind != Kind::Polling,
            _ => true,
        }
    }
}

/// What a caller is told for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Unavailable,
    Lost,
}

impl Effect {
    /// Whether a fault can have it.
    pub(crate) fn is_of(self, fault: Fault) -> bool {
        match fault {
            // What is done twice, or not heard, is done all the same.
            Fault::Doubled | Fault::MessagesLost => false,
            // Who has died is told nothing.
            Fault::Killed => false,
            Fault::ClockAhead | Fault::ClockBack => self == Self::Lost,
            // An answer that is read late is no outage, and the manager's thread renews.
            Fault::CallerStands => false,
            _ => true,
        }
    }

    /// For how long after a fault: a request that was sent during it may wait so long for its
    /// answer, and be repeated once.
    pub(crate) fn shows(self) -> Duration {
        REQUEST_TIMEOUT + Duration::from_secs(1)
    }
}

/// The shortest and the longest time that a fault lasts.
const LASTS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Lets this many faults happen between these times.
pub(crate) fn plan(program: &Arc<Program>, number: usize, from: At, to: At) {
    let world = Arc::clone(&program.history.world);
    let kind = program.stores.kind();
    let can: Vec<_> = Fault::ALL
        .into_iter()
        .filter(|fault| fault.befalls(kind))
        .collect();
    for _ in 0..number {
        let fault = can[world.draw(|chance| chance.usize(..can.len()))];
        let begins = world.between(from, to);
        let program = Arc::clone(program);
        world.at(begins, move || strike(fault, &program));
    }
}

fn strike(fault: Fault, program: &Arc<Program>) {
    let world = Arc::clone(&program.history.world);
    let servers = struck(program);
    // One that runs, from the one that is drawn on.
    let places = program.size.processes as usize;
    let place = world.draw(|chance| chance.usize(..places));
    let mut living = (place..place + places).map(|place| place % places);
    let place = living
        .find(|place| !program.process(*place).is_dead())
        .unwrap_or(place);
    let process = program.process(place);
    let lasts = match world.happens(500) {
        true => world.between(LASTS.0, LASTS.1 / 8),
        false => world.between(LASTS.0, LASTS.1),
    };
    let until = world.now() + lasts;
    match fault {
        Fault::Killed => {
            program.kill(place, lasts / 4);
            let (from, to) = (world.now(), world.now() + lasts / 4);
            happened(program, fault, Some(process.id), None, from, to);
        }
        Fault::Paused => stand(
            program,
            fault,
            &process,
            &[process.caller, process.manager],
            until,
        ),
        Fault::CallerStands => stand(program, fault, &process, &[process.caller], until),
        Fault::ManagerStands => stand(program, fault, &process, &[process.manager], until),
        _ => {
            for server in servers {
                strike_server(fault, program, server, process.id, lasts);
            }
        }
    }
}

/// Of several servers, now and then more than one at a time.
fn struck(program: &Program) -> Vec<Arc<dyn Machine>> {
    let world = &program.history.world;
    let mut servers = program.stores.machines();
    let first = world.draw(|chance| chance.usize(..servers.len()));
    servers.swap(0, first);
    if servers.len() > 1 {
        let number = match world.happens(300) {
            true => world.draw(|chance| chance.usize(2..=servers.len())),
            false => 1,
        };
        world.draw(|chance| chance.shuffle(&mut servers[1..]));
        servers.truncate(number);
    }
    servers
}

fn strike_server(
    fault: Fault,
    program: &Arc<Program>,
    server: Arc<dyn Machine>,
    process: ProcessId,
    lasts: Duration,
) {
    let world = Arc::clone(&program.history.world);
    let now = world.now();
    let until = now + lasts;
    let (id, one) = (Some(server.id()), Some(process));
    match fault {
        Fault::AnswersLost => weather(program, fault, &*server, process, until, move |weather| {
            weather.loses_answers = weather.loses_answers.max(until);
        }),
        Fault::RequestsLate => weather(program, fault, &*server, process, until, move |weather| {
            weather.loses_requests = weather.loses_requests.max(until);
        }),
        Fault::Doubled => weather(program, fault, &*server, process, until, move |weather| {
            weather.doubles = weather.doubles.max(until);
        }),
        Fault::MessagesLost => weather(program, fault, &*server, process, until, move |weather| {
            weather.loses_messages = weather.loses_messages.max(until);
        }),
        Fault::Slow => {
            let most = world.between(Duration::from_millis(5), Duration::from_millis(1_500));
            // What was sent slowly is on its way after that.
            weather(
                program,
                fault,
                &*server,
                process,
                until + most,
                move |weather| {
                    weather.slow = (until, most);
                },
            );
        }
        Fault::SilentThere => weather(program, fault, &*server, process, until, move |weather| {
            weather.silent_there = weather.silent_there.max(until);
        }),
        Fault::SilentBack => weather(program, fault, &*server, process, until, move |weather| {
            weather.silent_back = weather.silent_back.max(until);
        }),
        Fault::Cut => {
            server.cut(process);
            happened(program, fault, one, id, now, now);
        }
        Fault::Restart => {
            server.restart(lasts);
            happened(program, fault, None, id, now, until);
        }
        Fault::WritesLost => {
            let lag = world.between(Duration::from_millis(1), Duration::from_millis(500));
            let down = match program.stores.stays_away() {
                // As it is documented: then nothing is lost that counts.
                Some(long_enough) if world.happens(400) => long_enough,
                _ => lasts / 4,
            };
            server.lose_writes(lag, down);
            happened(program, fault, None, id, now, now + lag + down);
        }
        Fault::Failover => {
            let lag = world.between(Duration::from_millis(1), Duration::from_millis(500));
            server.fail_over(lag, lasts / 8);
            happened(program, fault, None, id, now, now + lag + lasts / 8);
        }
        Fault::ServerStands => {
            server.stand_still(until);
            happened(program, fault, None, id, now, until);
        }
        Fault::ClockAhead | Fault::ClockBack => {
            let by = i64::try_from(lasts.as_nanos() / 2).unwrap_or(i64::MAX);
            server.step_clock(if fault == Fault::ClockAhead { by } else { -by });
            happened(program, fault, None, id, now, until);
        }
        Fault::Killed | Fault::Paused | Fault::CallerStands | Fault::ManagerStands => {}
    }
}

/// Is said to the checks, which hold it against what they see.
fn happened(
    program: &Program,
    fault: Fault,
    process: Option<ProcessId>,
    server: Option<ServerId>,
    from: At,
    to: At,
) {
    program.history.trouble(Trouble {
        fault,
        process,
        server,
        from,
        to,
        stands: None,
        outage: matches!(
            fault,
            Fault::SilentThere | Fault::SilentBack | Fault::Restart | Fault::ServerStands
        ),
    });
}

fn weather(
    program: &Program,
    fault: Fault,
    server: &dyn Machine,
    process: ProcessId,
    until: At,
    change: impl Fn(&mut Weather),
) {
    server.change_weather(process, &change);
    let now = program.history.world.now();
    happened(program, fault, Some(process), Some(server.id()), now, until);
}

fn stand(
    program: &Program,
    fault: Fault,
    process: &Arc<Process>,
    executors: &[crate::world::ExecutorId],
    until: At,
) {
    let world = process.world();
    for &executor in executors {
        world.stall(executor);
        let world_then = Arc::clone(world);
        world.at(until, move || world_then.go_on(executor));
    }
    program.history.trouble(Trouble {
        fault,
        process: Some(process.id),
        server: None,
        from: world.now(),
        to: until,
        stands: Some(process.id),
        outage: false,
    });
}
