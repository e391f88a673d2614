//! The signals that the tool gets.

use std::fs;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::exit::Exit;
use crate::say;

/// All that a program may be sent and catch, but those of its own faults; `PIPE` is one of
/// them, as the tool gets it for what it prints itself.
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

/// Those that stop who asks a terminal for something from its background. The tool asks for
/// nothing there once its command runs.
const OF_BACKGROUND: &[Signal] = &[Signal::TTIN, Signal::TTOU];

/// Those that do nothing to who does not catch them.
pub(crate) const HARMLESS: [Signal; 4] = [Signal::CHILD, Signal::CONT, Signal::URG, Signal::WINCH];

/// The signals that come from now on, in their order.
pub(crate) struct Signals {
    told: UnboundedReceiver<Signal>,
    tell: UnboundedSender<Signal>,
}

impl Signals {
    /// Within a runtime.
    pub(crate) fn listen() -> Result<Self, Exit> {
        let (tell, told) = unbounded_channel();
        let signals = Self { told, tell };
        signals.add(CAUGHT)?;
        Ok(signals)
    }

    /// Those besides that a command may be sent.
    pub(super) fn listen_for_command(&self) -> Result<(), Exit> {
        self.add(OF_BACKGROUND)
    }

    fn add(&self, signals: &[Signal]) -> Result<(), Exit> {
        let ignored = ignored();
        for &caught in signals {
            // What was ignored for us, as by `nohup`, is to be ignored by the command.
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

    /// The next one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.told.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// The next that ends who does not catch it, by its number. Meanwhile a stop is one.
    pub(crate) async fn ends(&mut self) -> i32 {
        loop {
            match self.next().await {
                Signal::TSTP => super::terminal::stop_oneself(),
                harmless if HARMLESS.contains(&harmless) => {}
                signal => return signal.as_raw(),
            }
        }
    }

    /// Waits for this one, and keeps those that come before it.
    pub(super) async fn until(&mut self, last: Signal, before: &mut Vec<Signal>) {
        loop {
            match self.next().await {
                signal if signal == last => return,
                signal => before.push(signal),
            }
        }
    }
}

/// The signals that this process was started with as ignored, one bit each. Elsewhere than
/// on Linux, nobody tells without asking for more than a program may that is safe.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}
