//! The signals that the tool gets.

use std::fs;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::exit::Exit;
use crate::say;

/// All signals that a program can be sent and can catch, except those that report its own faults.
/// `PIPE` counts as such a fault: the tool gets it for its own output.
const CAUGHT: &[Signal] = &[
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::TERM,
    Signal::CHILD,
    Signal::CONT,
    Signal::TSTP,
    Signal::URG,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::VTALARM,
    Signal::PROF,
    Signal::WINCH,
    Signal::IO,
    #[cfg(target_os = "linux")]
    Signal::POWER,
    #[cfg(target_os = "linux")]
    Signal::STKFLT,
];

/// The signals that stop a background process that uses the terminal. Once the command runs, the
/// tool itself does not use it in this way, so such a signal is for the command.
const OF_BACKGROUND: &[Signal] = &[Signal::TTIN, Signal::TTOU];

/// The signals that do nothing to a process that does not catch them.
pub(crate) const HARMLESS: [Signal; 4] = [Signal::CHILD, Signal::CONT, Signal::URG, Signal::WINCH];

/// The signals that come after [`Signals::listen`]. Signals of different kinds may change their
/// order.
pub(crate) struct Signals {
    told: UnboundedReceiver<Signal>,
    tell: UnboundedSender<Signal>,
}

impl Signals {
    /// Must be called within a Tokio runtime.
    pub(crate) fn listen() -> Result<Self, Exit> {
        let (tell, told) = unbounded_channel();
        let signals = Self { told, tell };
        signals.add(CAUGHT)?;
        Ok(signals)
    }

    /// Listens also to the signals that make sense only while a command runs.
    pub(super) fn listen_for_command(&self) -> Result<(), Exit> {
        self.add(OF_BACKGROUND)
    }

    fn add(&self, signals: &[Signal]) -> Result<(), Exit> {
        let ignored = ignored();
        for &caught in signals {
            // A signal that was ignored when this process started, as with `nohup`, stays ignored,
            // so that the command ignores it too.
            let number = caught.as_raw();
            if caught != Signal::CHILD && ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            let mut stream = signal(SignalKind::from_raw(number)).map_err(|error| {
                say::line(format_args!("cannot listen to {caught:?}: {error}"));
                Exit::SYSTEM
            })?;
            let tell = self.tell.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && tell.send(caught).is_ok() {}
            });
        }
        Ok(())
    }

    /// The next signal. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.told.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// The number of the next signal that ends a process that does not catch it. If TSTP comes
    /// before, this process stops until it is continued.
    pub(crate) async fn ends(&mut self) -> i32 {
        loop {
            match self.next().await {
                Signal::TSTP => super::terminal::stop_oneself(),
                harmless if HARMLESS.contains(&harmless) => {}
                signal => return signal.as_raw(),
            }
        }
    }

    /// Waits for the signal `last`, and puts those that come before it into `before`.
    pub(super) async fn until(&mut self, last: Signal, before: &mut Vec<Signal>) {
        loop {
            match self.next().await {
                signal if signal == last => return,
                signal => before.push(signal),
            }
        }
    }
}

/// The signals that this process ignores since its start, one bit each. Without Linux's `/proc` it
/// is none: only `unsafe` code could ask the system there.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}
