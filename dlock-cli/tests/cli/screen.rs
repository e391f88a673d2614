//! A terminal whose screen is read: what a person would see there.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::process::Child;
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pty_process::Size;
use pty_process::blocking::{self, Pty};

use crate::support::wait::{eventually_blocking, until};

/// For a test with an outage, which is told after this time.
pub(crate) const IMPATIENT: [(&str, &str); 1] = [("DLOCK_REQUEST_TIMEOUT", "5s")];

/// A program on a screen of its own, killed on drop.
pub(crate) struct Screen {
    pty: Arc<Pty>,
    child: Child,
    seen: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    /// The tool on this store, `rows` × `columns`.
    pub(crate) fn of_tool(
        url: &str,
        arguments: &[&str],
        size: (u16, u16),
        set: &[(&str, &str)],
    ) -> Self {
        Self::of(env!("CARGO_BIN_EXE_dlock"), url, arguments, size, set)
    }

    pub(crate) fn of(
        program: &str,
        url: &str,
        arguments: &[&str],
        (rows, columns): (u16, u16),
        set: &[(&str, &str)],
    ) -> Self {
        let (pty, pts) = blocking::open().expect("a pseudo-terminal");
        pty.resize(Size::new(rows, columns)).expect("a size");
        // Whoever runs the tests in the background has interrupts ignored.
        let child = blocking::Command::new("env")
            .args(["--default-signal", program])
            .args(arguments)
            .env_remove("NO_COLOR")
            .env("DLOCK_URL", url)
            // The first connection may take a busy machine long.
            .env("DLOCK_REQUEST_TIMEOUT", "10s")
            .env("dlock", env!("CARGO_BIN_EXE_dlock"))
            .env("PS1", "prompt> ")
            .env("TERM", "xterm-256color")
            .envs(set.iter().copied())
            .spawn(pts)
            .expect("a program");
        let parser = vt100::Parser::new(rows, columns, 0);
        let (pty, seen) = (Arc::new(pty), Arc::new(Mutex::new(parser)));
        let (reader, screen) = (Arc::clone(&pty), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = (&*reader).read(&mut buffer) {
                screen.lock().expect("no panic").process(&buffer[..length]);
            }
        });
        Self { pty, child, seen }
    }

    pub(crate) fn types(&self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).expect("a terminal");
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let mut seen = self.seen.lock().expect("no panic");
        seen.screen_mut().set_size(rows, columns);
        self.pty.resize(Size::new(rows, columns)).expect("a size");
    }

    pub(crate) fn send(&self, signal: Signal) {
        let id = Pid::from_raw(i32::try_from(self.child.id()).expect("a number"));
        kill(id, signal).expect("our own process");
    }

    /// What is on it.
    pub(crate) fn text(&self) -> String {
        self.read(|screen| screen.contents())
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&vt100::Screen) -> T) -> T {
        read(self.seen.lock().expect("no panic").screen())
    }

    /// Waits until the screen is as wanted, and gives its text.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        // It may be looked at while it is drawn: so it is judged when it stays as it is.
        let before = RefCell::new(String::new());
        let is_drawn = |text: &str| before.replace(text.to_owned()) == text;
        let text = until(
            what,
            async || Lines(self.text()),
            |Lines(text)| is_drawn(text) && wanted(text),
        )
        .await;
        text.0
    }

    pub(crate) async fn shows(&self, text: &str) -> String {
        self.until(&format!("{text:?} is shown"), |screen| {
            screen.contains(text)
        })
        .await
    }

    pub(crate) fn ends(&mut self) -> Option<i32> {
        let ended = eventually_blocking("it ends", || self.child.try_wait().expect("a child"));
        crate::code_of(ended)
    }

    /// What the tool wrote last may not have been read when it has ended.
    pub(crate) async fn until_restored(&self) {
        let restored = async || self.is_restored();
        until("the terminal is as before", restored, |is| *is).await;
    }

    /// As a shell finds it: its own screen, a cursor, and keys that are shown as typed.
    pub(crate) fn is_restored(&self) -> bool {
        use rustix::termios::{LocalModes, tcgetattr};
        let shown = self.read(|screen| !screen.alternate_screen() && !screen.hide_cursor());
        let set = tcgetattr(&*self.pty).expect("settings");
        shown
            && set
                .local_modes
                .contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a failure, line by line.
struct Lines(String);

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\n{}\n", self.0)
    }
}
