//! The process group of a command.

use std::fs;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process,
    test_kill_process_group, waitid,
};

/// A process group and its leader, which is a child of the tool. The system gives the number to no
/// other process or group until the leader is reaped and the group is empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group(Pid);

/// The state of the leader.
#[derive(Clone, Copy, Debug)]
pub(super) enum Look {
    Runs,
    Stopped(Signal),
    /// With this exit code.
    Exited(i32),
    /// By the signal of this number.
    Killed(i32),
}

impl Group {
    pub(super) fn of(leader: u32) -> Option<Self> {
        i32::try_from(leader).ok().and_then(Pid::from_raw).map(Self)
    }

    pub(super) fn id(self) -> Pid {
        self.0
    }

    /// Sends a signal to all processes of the group that this user may signal; the others [are out
    /// of reach](Self::is_out_of_reach). It is no failure if no process is left.
    pub(super) fn send(self, signal: Signal) {
        let _ = kill_process_group(self.0, signal);
    }

    /// Whether the group has a process that this user may not signal, such as one that `sudo`
    /// started.
    pub(super) fn is_out_of_reach(self) -> bool {
        self.members().any(is_foreign)
    }

    /// Whether this user may not signal the leader, which must be running. This costs less than to
    /// look at all processes of the group.
    pub(super) fn has_foreign_leader(self) -> bool {
        is_foreign(self.0)
    }

    /// Tells all of the group to end.
    pub(super) fn terminate(self) {
        self.send(Signal::TERM);
        // A stopped process handles TERM only when it is continued.
        self.send(Signal::CONT);
    }

    /// Whether the group has any process, alive or not yet reaped.
    pub(super) fn exists(self) -> bool {
        test_kill_process_group(self.0) != Err(Errno::SRCH)
    }

    /// The state of the leader. The leader is not reaped, so its number stays taken.
    pub(super) fn look(self) -> Look {
        let of_leader = |options| {
            let options = options | WaitIdOptions::NOHANG;
            waitid(WaitId::Pid(self.0), options).ok().flatten()
        };
        if let Some(status) = of_leader(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            return match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Look::Exited(code),
                (None, signal) => Look::Killed(signal.unwrap_or_default()),
            };
        }
        let status = of_leader(WaitIdOptions::STOPPED);
        let signal = status.and_then(|status| status.stopping_signal());
        match signal.and_then(Signal::from_named_raw) {
            Some(signal) => Look::Stopped(signal),
            None => Look::Runs,
        }
    }

    /// Whether anybody but the leader is alive in the group.
    pub(super) fn has_others(self) -> bool {
        self.members().any(|member| member != self.0)
    }

    /// Whether anybody in it is alive. Where processes are not shown, somebody may be.
    pub(super) fn is_alive(self) -> bool {
        fs::read("/proc/self/stat").is_err() || self.members().next().is_some()
    }

    /// The living processes of the group.
    fn members(self) -> impl Iterator<Item = Pid> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes.filter_map(move |process| {
            let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            self.member(&stat)
        })
    }

    /// The process that a line of `/proc/PID/stat` is about, if it is alive and in the group. The
    /// fields are number, name in brackets, state, parent, group (see `man 5 proc_pid_stat`).
    fn member(self, stat: &str) -> Option<Pid> {
        let number = stat.split(' ').next()?.parse().ok()?;
        // The name may contain anything, also brackets.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next();
        let group: Option<i32> = fields.nth(1).and_then(|group| group.parse().ok());
        let leader = self.0.as_raw_nonzero().get();
        let is_member = group == Some(leader) && !matches!(state, Some("Z" | "X"));
        Pid::from_raw(number).filter(|_| is_member)
    }
}

fn is_foreign(process: Pid) -> bool {
    test_kill_process(process) == Err(Errno::PERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_the_group_shows_whatever_its_name_is() {
        let group = Group::of(7).expect("a number");
        for (stat, member) in [
            ("9 (sleep) S 7 7 3 0", Some(9)),
            ("9 (a) Z 1 2) R 7 7 3 0", Some(9)),
            ("9 (sleep) Z 7 7 3 0", None),
            ("7 (sh) S 3 7 3 0", Some(7)),
            ("7 (sh) Z 3 7 3 0", None),
            ("9 (sleep) S 7 8 3 0", None),
            ("", None),
        ] {
            let seen = group
                .member(stat)
                .map(|member| member.as_raw_nonzero().get());
            assert_eq!(seen, member, "{stat}");
        }
    }
}
