//! A command that runs under a lock, until nothing of it is left.

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

/// How often the watcher is told that the lease was renewed: as a part of the ttl, and at
/// least so often.
const TOLD_PER_TTL: u32 = 20;
const TOLD: Duration = Duration::from_secs(1);

/// How often is looked whether what the command left behind has ended.
const LOOK: Duration = Duration::from_millis(10);

/// How long the job is given to hear that it is to stop.
const HEARS: Duration = Duration::from_secs(1);

/// What is left to say when the lock is lost.
const OUT_OF_REACH: &str = "the lock is lost, and the command runs on without it: this user may \
                            not end all of it; end it as its own user";

/// How a command ended.
pub(super) struct Ended {
    pub(super) exit: Exit,
    /// It ran, and returned 0.
    pub(super) well: bool,
    /// It was told to end, as the lock was lost or about to be.
    pub(super) given_up: bool,
}

/// A command that runs.
pub(super) struct Supervised {
    launcher: Launcher,
    group: Group,
    watcher: Option<Watcher>,
    terminal: Option<Terminal>,
    on_lost: OnLost,
    kill_after: Duration,
    /// When renewals end, if they do.
    renewed_until: Option<Instant>,
    tell_every: Duration,
    program: String,
    /// TERM was sent as the lock was about to be lost, or KILL as it was.
    warned: bool,
    lost: bool,
    /// That it cannot be ended by this user.
    told_of_reach: bool,
    /// A TSTP is still to come that this process has sent to its own job.
    own_stop_comes: bool,
}

/// What the loop does next.
enum Event {
    Signal(Signal),
    Lost,
    Warned,
    Time,
}

impl Supervised {
    /// Starts the command. It has not begun when this fails.
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
            // Why, is told when it is given back.
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

    /// Returns when the command has ended, and all that it left in its group.
    pub(super) async fn until_ended(mut self, guard: &LockGuard, signals: &mut Signals) -> Ended {
        let exit = loop {
            match self.group.look() {
                Look::Runs => self.look_at_reach(guard),
                Look::Stopped(signal) => self.stopped(signal, guard, signals).await,
                Look::Exited(code) => break Exit(u8::try_from(code).unwrap_or(u8::MAX)),
                Look::Killed(signal) => break Exit::of_signal(signal),
            }
            let event = self.next(guard, signals, self.tell_every).await;
            self.handle(event, guard);
        };
        let given_up = self.gave_up(guard);
        self.end_others(guard, signals).await;
        let given_up = given_up || self.gave_up(guard);
        if let Some(terminal) = &mut self.terminal {
            let killed = exit.0 > 128 && terminal.is_given();
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

    /// Whether the command had to end because of its lock. The watcher tells it when this
    /// process cannot.
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

    /// The watcher told the command to end, or was about to. That stays so if the lease is renewed
    /// after all.
    fn was_told(&mut self, guard: &LockGuard) {
        self.warned = true;
        say::line(format_args!(
            "the lock `{}` {}; the command was told to end",
            guard.key(),
            self.why(),
        ));
    }

    /// What is next. A loss comes before all else.
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
        // First: whoever was told to end is not told once more.
        if self.watcher_has_warned() && !self.warned {
            self.was_told(guard);
        }
        match event {
            // Tells of the tool's own children.
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

    /// What runs as another user, through `sudo`, does not end with the lock.
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

    /// Why the lock comes to its end.
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

    /// A watcher that somebody has ended gets a successor.
    fn keep_watched(&mut self, guard: &LockGuard) {
        if !self.watcher.as_mut().is_some_and(Watcher::has_ended) {
            return;
        }
        // It may have warned just before.
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

    /// What the command leaves behind in its group does not run without the lock.
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

    /// The command was stopped: by its user, or as it asked for the terminal.
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
        // Without a shell that knows of jobs, nobody would continue it.
        if !terminal::is_alone() {
            self.stop_with_it(guard, signals).await;
        }
        // Whoever was away for longer than the ttl goes on with nothing.
        if !guard.is_held() && self.on_lost == OnLost::Kill {
            return;
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.give(self.group);
        }
        self.group.send(Signal::CONT);
    }

    /// Stops the tool's own job, so that the shell sees it, until it is continued.
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
        // This process is told too, and does not pass it on.
        let mut others = Vec::new();
        let hears = signals.until(Signal::TSTP, &mut others);
        self.own_stop_comes = tokio::time::timeout(HEARS, hears).await.is_err();
        terminal::stop_oneself();
        for signal in others {
            self.handle(Event::Signal(signal), guard);
        }
    }
}

/// How early a loss counts as one.
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

/// What the command is told: of several keys, one a line, in the order given.
/// Where the store has no tokens, it is told none.
fn variables(args: &Run, guard: &LockGuard) -> [(&'static str, Option<String>); 2] {
    let mut keys: Vec<&str> = Vec::new();
    for key in &args.keys {
        if !keys.contains(&&**key) {
            keys.push(key);
        }
    }
    let has_tokens = guard.token() != FencingToken::NONE;
    let tokens: Vec<_> = guard.tokens().iter().map(ToString::to_string).collect();
    [
        ("DLOCK_KEY", Some(keys.join("\n"))),
        ("DLOCK_TOKEN", has_tokens.then(|| tokens.join("\n"))),
    ]
}

/// How long there still is, in a way that people read.
fn shown(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds => format!("{seconds} s"),
    }
}
