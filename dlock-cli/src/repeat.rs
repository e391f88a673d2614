//! `dlock ls --watch`: prints the list again and again.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use dlock::backend::LockInfo;
use dlock::{LockError, LockManager};

use crate::args::{Common, Form, Ls};
use crate::exit::Exit;
use crate::{output, say, show, store};

/// Runs until a signal ends the process. No signal is caught, because the tool holds no lock here.
pub(crate) fn ls(args: &Ls, pause: Duration, common: &Common) -> Result<Exit, Exit> {
    let config = store::config(common)?;
    store::block_on(async {
        let manager = store::connect(config).await?;
        let look = async |manager: &LockManager| {
            let locks = manager.list(&args.prefix).await?;
            Ok::<_, LockError>(show::sorted(locks, args.sort))
        };
        let first = look(&manager).await.map_err(|error| Exit::of(&error))?;
        let mut list = List {
            locks: first,
            at: Instant::now(),
            error: None,
        };
        let mut is_first = true;
        let on_screen = io::stdout().is_terminal() && args.output != Form::Json;
        loop {
            match on_screen {
                true => output::write(list.frame(args.output, pause).as_bytes())?,
                false if list.error.is_some() => Exit::OK,
                false => output::write(list.part(args.output, is_first).as_bytes())?,
            };
            is_first = false;
            tokio::time::sleep(pause).await;
            let looked = look(&manager).await;
            list.update(looked, on_screen);
        }
    })
}

/// The last list that the store gave.
struct List {
    locks: Vec<LockInfo>,
    /// When the store gave it.
    at: Instant,
    /// Why the last attempt to get a newer list failed.
    error: Option<LockError>,
}

impl List {
    fn update(&mut self, looked: Result<Vec<LockInfo>, LockError>, on_screen: bool) {
        match looked {
            Ok(locks) => {
                if self.error.take().is_some() && !on_screen {
                    say::line("the store answers again");
                }
                (self.locks, self.at) = (locks, Instant::now());
            }
            Err(error) => {
                // On a screen, `frame` shows the error above the list.
                if self.error.is_none() && !on_screen {
                    say::error(&error);
                }
                self.error = Some(error);
            }
        }
    }

    /// For a pipe. Tables have an empty line between them; a JSON array is one line.
    fn part(&self, form: Form, is_first: bool) -> String {
        match form {
            Form::Json => format!("{}\n", show::json(&self.locks)),
            form if is_first => show::text(&self.locks, form),
            form => format!("\n{}", show::text(&self.locks, form)),
        }
    }

    /// For a terminal: overwrites the list that was there.
    fn frame(&self, form: Form, pause: Duration) -> String {
        let head = match &self.error {
            None => format!("every {pause:?}, until ^C"),
            Some(error) => {
                let old = self.at.elapsed().as_secs();
                format!(
                    "no answer, this is {old}s old: {}",
                    show::printable(&error.to_string())
                )
            }
        };
        let text = show::text(&self.locks, form);
        let lines: Vec<_> = [&*head, ""].into_iter().chain(text.lines()).collect();
        let (width, height) = crossterm::terminal::size().unwrap_or((80, 24));
        let (width, height) = (usize::from(width), usize::from(height));
        let room = height.saturating_sub(1).max(2);
        let cut =
            (lines.len() > room).then(|| format!("… and {} more lines", lines.len() - room + 1));
        let shown = if cut.is_some() { room - 1 } else { lines.len() };
        // To the top left, and without line wrap (`?7l`). Too long lines are cut here by the number
        // of their characters. Some characters are two columns wide: the terminal cuts what is then
        // still too wide.
        let mut frame = "\x1b[H\x1b[?7l".to_owned();
        for line in lines.into_iter().take(shown).chain(cut.as_deref()) {
            frame.extend(line.chars().take(width));
            frame.push_str("\x1b[K\r\n");
        }
        frame.push_str("\x1b[J\x1b[?7h");
        frame
    }
}
