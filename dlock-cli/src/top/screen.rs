//! Takes the terminal for `dlock top`, and gives it back as it was.

use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::backend::CrosstermBackend;
use ratatui::{Frame, Terminal};

/// The alternate screen, in raw mode. When this is dropped, the terminal is as before.
pub(super) struct Screen(Terminal<CrosstermBackend<Stdout>>);

/// A panic has given the terminal back, so that its message can be read.
static PANICKED: AtomicBool = AtomicBool::new(false);

impl Screen {
    pub(super) fn take() -> io::Result<Self> {
        restore_on_panic();
        // From here on, `Drop` gives the terminal back if something fails.
        let mut screen = Self(Terminal::new(CrosstermBackend::new(stdout()))?);
        screen.take_again()?;
        Ok(screen)
    }

    /// Takes the terminal, also if another program has had it meanwhile.
    pub(super) fn take_again(&mut self) -> io::Result<()> {
        // crossterm does not set raw mode if it believes that it is set already.
        disable_raw_mode()?;
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        // A `Terminal` remembers what it has drawn and draws only the difference. A new one draws
        // everything.
        self.0 = Terminal::new(CrosstermBackend::new(stdout()))?;
        Ok(())
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw)?;
        Ok(())
    }

    /// Whether a panic somewhere in the program has given the terminal back.
    pub(super) fn is_lost(&self) -> bool {
        PANICKED.load(Ordering::Relaxed)
    }

    pub(super) fn give_back(&self) {
        restore();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if !self.is_lost() {
            restore();
        }
    }
}

/// Gives the terminal back. Errors are ignored, because the terminal may be gone.
fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Gives the terminal back when something panics, before the message is printed: so it can be read,
/// and the shell shows again what is typed.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let say = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !PANICKED.swap(true, Ordering::Relaxed) {
                restore();
            }
            say(panic);
        }));
    });
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use pty_process::blocking;
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;

    const PANICS: &str = "top::screen::tests::panics_in_a_terminal";

    /// Run by the test below, in a terminal of its own.
    #[test]
    #[ignore = "it panics"]
    fn panics_in_a_terminal() {
        let _screen = Screen::take().expect("a terminal");
        panic!("as it was told to");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_and_is_read_there() {
        let (pty, pts) = blocking::open().expect("a pseudo-terminal");
        let this = std::env::current_exe().expect("a program");
        let mut child = blocking::Command::new(this)
            .args(["--ignored", "--exact", PANICS, "--nocapture"])
            .spawn(pts)
            .expect("a program");
        let (mut shown, mut buffer) = (Vec::new(), [0; 1024]);
        // Until the child has closed the terminal.
        while let Ok(length @ 1..) = (&pty).read(&mut buffer) {
            shown.extend_from_slice(&buffer[..length]);
        }
        assert_eq!(child.wait().expect("a child").code(), Some(101));
        let shown = String::from_utf8_lossy(&shown);
        let place = |text: &str| {
            shown
                .find(text)
                .unwrap_or_else(|| panic!("{text:?}: {shown:?}"))
        };
        assert!(place("\u{1b}[?1049h") < place("\u{1b}[?1049l"));
        assert!(place("\u{1b}[?1049l") < place("as it was told to"));
        let set = tcgetattr(&pty).expect("settings").local_modes;
        assert!(
            set.contains(LocalModes::ICANON | LocalModes::ECHO),
            "{set:?}"
        );
    }
}
