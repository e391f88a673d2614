//! Supervises a command that runs under a lock, until all processes of its group have ended.

use std::io;
use std::time::Duration;

use dlock::{FencingToken, LockGuard};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::group::{Group, Look};
use super::launch::Launcher;
use super::signals::Signals;
use super::terminal::{self, Terminal};
use super::watch::{AHEAD, Watcher};
use crate::args::{OnLost, Run};
use crate::exit::Exit;
use crate::say;

/// The watcher is sent the deadline this many times per ttl, and at least once per `TOLD`.
const TOLD_PER_TTL: u32 = 20;
const TOLD: Duration = Duration::from_secs(1);

/// How often the tool checks whether the processes that the command left behind have ended.
const LOOK: Duration = Duration::from_millis(10);

/// How long this process waits for the TSTP that it has sent to its own job.
const HEARS: Duration = Duration::from_secs(1);

/// Printed when the lock is lost and this user cannot end the command.
const OUT_OF_REACH: &str = "the lock is lost, and the command runs on without it: this user may \
                            not end all of it; end it as its own user";

/// How a command ended.
pub(super) struct Ended {
    pub(super) exit: Exit,
    /// It ran, and returned 0.
    pub(super) well: bool,
    /// It was told to end, because the lock was lost or about to be lost.
    pub(super) given_up: bool,
}

/// A running command.
pub(super) struct Supervised {
    launcher: Launcher,
    group: Group,
    watcher: Option<Watcher>,
    terminal: Option<Terminal>,
    on_lost: OnLost,
    kill_after: Duration,
    /// When renewals end, if `--max-hold` is given.
    renewed_until: Option<Instant>,
    tell_every: Duration,
    program: String,
    /// The command was told to end, because the lock was lost or about to be lost.
    warned: bool,
    lost: bool,
    /// The message that this user may not signal the command was printed.
    told_of_reach: bool,
    /// This process has sent TSTP to its own job, and has not got it itself yet.
    own_stop_comes: bool,
}

/// What the loop handles next.
enum Event {
    Signal(Signal),
    Lost,
    Warned,
    Time,
}

impl Supervised {
    /// Starts the command. If this fails, the command has not run.
    pub(super) fn start(
        args: &Run,
        kill_after: Duration,
        guard: &LockGuard,
        signals: &Signals,
    ) -> Result<Self, Exit> {
        signals.listen_for_command()?;
        let program = args.command.first().map(|name| name.to_string_lossy());
        let program = program.unwrap_or_default().into_owned();
        let failed = |error: &io::Error| {
            say::line(format_args!("cannot start a process: {error}"));
            Exit::SYSTEM
        };
        let Some(deadline) = guard.deadline() else {
            // The lock is lost already. The release tells why.
            return Err(Exit::LOST);
        };
        let variables = variables(args, guard);
        let mut launcher =
            Launcher::start(&args.command, &variables).map_err(|error| failed(&error))?;
        let group = launcher.group;
        let kills = args.on_lost == OnLost::Kill;
        let watcher = match args.on_lost {
            OnLost::Ignore => Ok(None),
            _ => Watcher::start(group, deadline, kill_after, kills).map(Some),
        };
        let mut terminal = Terminal::open();
        let started = watcher.and_then(|watcher| {
            if terminal::reads_from_it()
                && let Some(terminal) = &mut terminal
            {
                terminal.give(group);
            }
            launcher.go().map(|()| watcher)
        });
        match started {
            Ok(watcher) => Ok(Self {
                launcher,
                group,
                watcher,
                terminal,
                on_lost: args.on_lost,
                kill_after,
                renewed_until: args.max_hold.map(|limit| Instant::now() + limit),
                tell_every: tell_every(guard),
                program,
                warned: false,
                lost: false,
                told_of_reach: false,
                own_stop_comes: false,
            }),
            Err(error) => {
                group.send(Signal::KILL);
                let _ = launcher.child.wait();
                if let Some(terminal) = &mut terminal {
                    terminal.take_back();
                }
                Err(failed(&error))
            }
        }
    }

    /// Returns when the command and all other processes of its group have ended.
    pub(super) async fn until_ended(mut self, guard: &LockGuard, signals: &mut Signals) -> Ended {
        let exit = loop {
            match self.group.look() {
                Look::Runs => self.look_at_reach(guard),
                Look::Stopped(signal) => self.stopped(signal, guard, signals).await,
                Look::Exited(code) => break Exit::Code(u8::try_from(code).unwrap_or(u8::MAX)),
                Look::Killed(signal) => break Exit::Signal(signal),
            }
            let event = self.next(guard, signals, self.tell_every).await;
            self.handle(event, guard);
        };
        let given_up = self.gave_up(guard);
        self.end_others(guard, signals).await;
        let given_up = given_up || self.gave_up(guard);
        if let Some(terminal) = &mut self.terminal {
            let killed = exit.code() > 128 && terminal.is_given();
            terminal.take_back();
            if killed {
                terminal.restore();
            }
        }
        if let Some(watcher) = self.watcher.take() {
            watcher.done();
        }
        let _ = self.launcher.child.wait();
        let refusal = self.launcher.refusal();
        let exit = match &refusal {
            Some(error) => {
                say::line(format_args!("{}: {error}", self.program));
                match error.kind() {
                    io::ErrorKind::NotFound => Exit::NOT_FOUND,
                    _ => Exit::CANNOT_RUN,
                }
            }
            None => exit,
        };
        Ended {
            exit,
            well: exit == Exit::OK && refusal.is_none(),
            given_up,
        }
    }

    /// Whether the command was told to end because of its lock. If this process was stopped, the
    /// watcher may have told it.
    fn gave_up(&mut self, guard: &LockGuard) -> bool {
        if self.on_lost == OnLost::Ignore || self.warned || self.lost {
            return self.on_lost != OnLost::Ignore;
        }
        let left = guard.deadline().map(|end| end - Instant::now());
        let late = left.is_none_or(|left| left <= self.kill_after);
        if late || self.watcher_has_warned() {
            self.was_told(guard);
        }
        self.warned
    }

    fn watcher_has_warned(&mut self) -> bool {
        self.watcher.as_mut().is_some_and(Watcher::has_warned)
    }

    /// Notes that the watcher has told the command to end, or was about to. This counts also if the
    /// lease is renewed after that.
    fn was_told(&mut self, guard: &LockGuard) {
        self.warned = true;
        say::line(format_args!(
            "the lock `{}` {}; the command was told to end",
            guard.key(),
            self.why(),
        ));
    }

    /// Waits for the next event. If there are several, a loss comes first.
    async fn next(&self, guard: &LockGuard, signals: &mut Signals, time: Duration) -> Event {
        let warns = self.on_lost != OnLost::Ignore && !self.warned;
        tokio::select! {
            biased;
            () = guard.lost_within(ahead(self.on_lost)), if !self.lost => Event::Lost,
            () = guard.lost_within(self.kill_after), if warns && !self.lost => Event::Warned,
            signal = signals.next() => Event::Signal(signal),
            () = sleep(time) => Event::Time,
        }
    }

    fn handle(&mut self, event: Event, guard: &LockGuard) {
        // This comes first, so that a command that the watcher has told to end is not told again.
        if self.watcher_has_warned() && !self.warned {
            self.was_told(guard);
        }
        match event {
            // It is about the tool's own children.
            Event::Signal(Signal::CHILD) => {}
            Event::Signal(Signal::TSTP) if std::mem::take(&mut self.own_stop_comes) => {}
            Event::Signal(signal) => self.group.send(signal),
            Event::Time => {}
            Event::Warned if self.warned => {}
            Event::Warned => self.warn(guard),
            Event::Lost => self.is_lost(),
        }
        if let (Some(watcher), Some(deadline)) = (&mut self.watcher, guard.deadline()) {
            watcher.held_until(deadline);
        }
        self.keep_watched(guard);
    }

    /// Warns once if the command runs as another user, for example through `sudo`: this user cannot
    /// end it when the lock is lost.
    fn look_at_reach(&mut self, guard: &LockGuard) {
        if self.told_of_reach || self.on_lost == OnLost::Ignore || !self.group.has_foreign_leader()
        {
            return;
        }
        self.told_of_reach = true;
        say::line(format_args!(
            "`{}` runs as another user, whom this one may send no signals: it gets none, and \
             runs on if the lock `{}` is lost; run dlock itself as that user: `sudo dlock run …`",
            self.program,
            guard.key(),
        ));
    }

    /// Why the lease ends.
    fn why(&self) -> &'static str {
        match self.renewed_until {
            Some(end) if end <= Instant::now() => "was held for its --max-hold",
            _ => "was not renewed in time",
        }
    }

    fn warn(&mut self, guard: &LockGuard) {
        self.warned = true;
        let left = guard.deadline().map(|end| end - Instant::now());
        self.terminate();
        let told = match self.group.is_out_of_reach() {
            true => "this user may not tell all of the command to end, so that it runs on",
            false => "the command is told to end",
        };
        say::line(format_args!(
            "the lock `{}` {} and ends in {}; {told}",
            guard.key(),
            self.why(),
            shown(left.unwrap_or_default()),
        ));
    }

    fn terminate(&mut self) {
        self.group.terminate();
        if let Some(watcher) = &mut self.watcher {
            watcher.warned();
        }
    }

    fn is_lost(&mut self) {
        self.lost = true;
        match self.on_lost {
            OnLost::Kill => {
                self.group.send(Signal::KILL);
                say::line(match self.group.is_out_of_reach() {
                    true => OUT_OF_REACH,
                    false => "the lock is lost; the command was killed",
                });
            }
            OnLost::Signal if self.warned => {}
            OnLost::Signal => {
                self.terminate();
                say::line(match self.group.is_out_of_reach() {
                    true => OUT_OF_REACH,
                    false => "the lock is lost; the command is told to end",
                });
            }
            OnLost::Ignore => say::line("the lock is lost; the command goes on without it"),
        }
    }

    /// Starts another watcher if somebody has ended this one.
    fn keep_watched(&mut self, guard: &LockGuard) {
        if !self.watcher.as_mut().is_some_and(Watcher::has_ended) {
            return;
        }
        // It may have told the command to end just before.
        if self.watcher_has_warned() && !self.warned {
            self.was_told(guard);
        }
        self.watcher = None;
        let kills = self.on_lost == OnLost::Kill;
        if let Some(deadline) = guard.deadline()
            && (kills || !self.warned)
        {
            match Watcher::start(self.group, deadline, self.kill_after, kills) {
                Ok(mut watcher) => {
                    if self.warned {
                        watcher.warned();
                    }
                    self.watcher = Some(watcher);
                }
                Err(error) => say::line(format_args!("nobody watches the command: {error}")),
            }
        }
    }

    /// Ends the processes that the command left behind in its group: they must not run without the
    /// lock.
    async fn end_others(&mut self, guard: &LockGuard, signals: &mut Signals) {
        if !self.group.has_others() {
            return;
        }
        if !(self.lost && self.on_lost == OnLost::Kill) {
            self.group.terminate();
            say::line(match self.group.is_out_of_reach() {
                true => {
                    "the command has ended; what it left running is of another user, and is \
                     waited for: this one may not tell it to end"
                }
                false => "the command has ended; what it left running is told to end too",
            });
        }
        let end = Instant::now() + self.kill_after;
        while self.group.has_others() {
            if Instant::now() >= end {
                self.group.send(Signal::KILL);
            }
            let event = self.next(guard, signals, LOOK).await;
            self.handle(event, guard);
        }
    }

    /// Handles a stop of the command: its user stopped it, or it used the terminal from the
    /// background.
    async fn stopped(&mut self, signal: Signal, guard: &LockGuard, signals: &mut Signals) {
        let Some(terminal) = &mut self.terminal else {
            return;
        };
        let asks = matches!(signal, Signal::TTIN | Signal::TTOU);
        if asks && !terminal.is_given() && terminal.give(self.group) {
            self.group.send(Signal::CONT);
            return;
        }
        let by_user = asks || signal == Signal::TSTP || terminal.is_given();
        if !by_user {
            return;
        }
        terminal.take_back();
        // Without a shell with job control, nobody would continue this process.
        if !terminal::is_alone() {
            self.stop_with_it(guard, signals).await;
        }
        // The lease may have ended meanwhile. Then the command is not continued, and the next event
        // is the loss.
        if !guard.is_held() && self.on_lost == OnLost::Kill {
            return;
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.give(self.group);
        }
        self.group.send(Signal::CONT);
    }

    /// Stops the tool's own job, as the shell expects of `^Z`, and returns when it is continued.
    async fn stop_with_it(&mut self, guard: &LockGuard, signals: &mut Signals) {
        if let Some(deadline) = guard.deadline() {
            if let Some(watcher) = &mut self.watcher {
                watcher.held_until(deadline);
            }
            let left = shown(deadline - Instant::now());
            say::line(format_args!(
                "stopped; the lock is not renewed meanwhile and lasts for {left}"
            ));
        }
        terminal::stop_job();
        // This process gets the TSTP too, and must not pass it on to the command.
        let mut others = Vec::new();
        let hears = signals.until(Signal::TSTP, &mut others);
        self.own_stop_comes = tokio::time::timeout(HEARS, hears).await.is_err();
        terminal::stop_oneself();
        for signal in others {
            self.handle(Event::Signal(signal), guard);
        }
    }
}

/// How long before the end of the lease the lock counts as lost.
fn ahead(on_lost: OnLost) -> Duration {
    match on_lost {
        OnLost::Kill => AHEAD,
        OnLost::Signal | OnLost::Ignore => Duration::ZERO,
    }
}

fn tell_every(guard: &LockGuard) -> Duration {
    let left = guard.deadline().map(|end| end - Instant::now());
    (left.unwrap_or_default() / TOLD_PER_TTL).clamp(LOOK, TOLD)
}

/// The variables for the command: the keys, and their fencing tokens, one in each line, in the
/// order given. On a store without tokens, `DLOCK_TOKEN` is empty: the tool itself may be run by
/// one that has set it.
fn variables(args: &Run, guard: &LockGuard) -> [(&'static str, String); 2] {
    let mut keys: Vec<&str> = Vec::new();
    for key in &args.keys {
        if !keys.contains(&&**key) {
            keys.push(key);
        }
    }
    let tokens: Vec<_> = match guard.token() {
        FencingToken::NONE => Vec::new(),
        _ => guard.tokens().iter().map(ToString::to_string).collect(),
    };
    [
        ("DLOCK_KEY", keys.join("\n")),
        ("DLOCK_TOKEN", tokens.join("\n")),
    ]
}

/// A time, as messages show it.
fn shown(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds => format!("{seconds} s"),
    }
}
