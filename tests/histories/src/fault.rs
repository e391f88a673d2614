//! What can happen in a history.

use std::fmt;
use std::time::Duration;

use crate::support::proxy::Proxy;
use crate::topology::{ServerFault, Setting, Topology};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// `SIGKILL`; another process comes in its place.
    WorkerKilled,
    /// `SIGSTOP`, for less than its ttl or for more.
    WorkerPaused,
    /// Its wall clock is set, forward or back.
    WorkerClock,
    /// Where the processes write a file themselves.
    WorkerDisk,
    Network(NetworkFault),
    Server(ServerFault),
}

/// What can happen on the way to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NetworkFault {
    /// Every connection breaks; new ones are made.
    Cut,
    /// Every connection breaks, and none is made.
    Refused,
    /// Connections stay, and nothing arrives until it ends.
    Silent,
    /// Requests arrive, and their answers are lost with the connections.
    AnswersLost,
    /// The connections that there are carry nothing any more; new ones do.
    Forgotten,
    Slow,
}

const NETWORK: [NetworkFault; 6] = [
    NetworkFault::Cut,
    NetworkFault::Refused,
    NetworkFault::Silent,
    NetworkFault::AnswersLost,
    NetworkFault::Forgotten,
    NetworkFault::Slow,
];

impl Fault {
    /// Those that can happen there.
    pub(crate) fn all(topology: &dyn Topology, setting: &Setting) -> Vec<Self> {
        let mut all = vec![Self::WorkerPaused];
        if !setting.lasting {
            all.push(Self::WorkerKilled);
        }
        if setting.spoiled {
            all.push(match topology.machine_of_workers() {
                // Theirs is the store's.
                Some(_) => Self::WorkerDisk,
                None => Self::WorkerClock,
            });
        }
        if !topology.proxies().is_empty() {
            all.extend(NETWORK.map(Self::Network));
        }
        let servers = topology.faults().into_iter();
        let servers = servers.filter(|fault| {
            let forgets = topology.may_forget(*fault) || topology.may_undo_releases(*fault);
            !setting.lasting || !forgets
        });
        all.extend(servers.map(Self::Server));
        all
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WorkerKilled => "process killed",
            Self::WorkerPaused => "process paused",
            Self::WorkerClock => "clock of a process set",
            Self::WorkerDisk => "disk full",
            Self::Network(NetworkFault::Cut) => "connections cut",
            Self::Network(NetworkFault::Refused) => "connections refused",
            Self::Network(NetworkFault::Silent) => "silence",
            Self::Network(NetworkFault::AnswersLost) => "answers lost",
            Self::Network(NetworkFault::Forgotten) => "connections forgotten",
            Self::Network(NetworkFault::Slow) => "slow network",
            Self::Server(ServerFault::Killed) => "server killed",
            Self::Server(ServerFault::Paused) => "server paused",
            Self::Server(ServerFault::LeaderKilled) => "leader killed",
            Self::Server(ServerFault::CutOff) => "server cut off",
            Self::Server(ServerFault::SlotMoved) => "slot moved",
            Self::Server(ServerFault::Kept) => "file kept",
            Self::Server(ServerFault::ClockAhead) => "clock set forward",
            Self::Server(ServerFault::ClockBack) => "clock set back",
            Self::Server(ServerFault::DiskFull) => "disk full",
        })
    }
}

impl NetworkFault {
    /// Whether nobody behind it can be answered.
    pub(crate) fn is_dark(self) -> bool {
        matches!(self, Self::Refused | Self::Silent | Self::AnswersLost)
    }

    pub(crate) fn begins(self, proxy: &Proxy) {
        match self {
            Self::Cut => proxy.cut(),
            Self::Refused => proxy.refuse(true),
            Self::Silent => proxy.stall(true),
            Self::AnswersLost => proxy.swallow_replies(true),
            Self::Forgotten => proxy.freeze(),
            Self::Slow => proxy.delay(Some(Duration::from_millis(30))),
        }
    }

    pub(crate) fn ends(self, proxy: &Proxy) {
        match self {
            Self::Cut => {}
            Self::Refused => proxy.refuse(false),
            Self::Silent => proxy.stall(false),
            Self::AnswersLost => proxy.swallow_replies(false),
            // What they had taken up arrives late.
            Self::Forgotten => proxy.thaw(),
            Self::Slow => proxy.delay(None),
        }
    }
}
