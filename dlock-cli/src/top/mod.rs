//! `dlock top`: who holds and waits for what, live.
//!
//! [`model`] is what is shown, [`look`] asks for it, [`draw`] puts it on the [`screen`].

mod draw;
mod figure;
mod look;
pub(crate) mod metrics;
mod model;
mod rows;
mod samples;
mod screen;
mod table;

use std::future::poll_fn;
use std::io::{self, IsTerminal};
use std::pin::Pin;
use std::time::{Duration, Instant};

use crossterm::event::{Event, EventStream};
use dlock::{LockError, LockManager};
use futures_core::Stream;
use rustix::process::Signal;
use tokio::sync::{mpsc, watch};

use self::draw::{Drawing, Palette};
use self::look::News;
use self::metrics::rates::Services;
use self::model::{Action, Model};
use self::screen::Screen;
use crate::args::{Common, Top};
use crate::exit::Exit;
use crate::run::signals::{HARMLESS, Signals};
use crate::run::terminal;
use crate::{say, store};

pub(crate) fn top(args: &Top, common: &Common) -> Result<Exit, Exit> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        say::line("`dlock top` is for terminals; into a pipe or a file goes `dlock ls --watch`");
        return Err(Exit::USAGE);
    }
    let config = store::config(common)?;
    store::block_on(async {
        let mut signals = Signals::listen()?;
        let begin = async {
            let manager = store::connect(config).await?;
            let began = Instant::now();
            let look = look::look(&manager, &args.prefix, most(args)).await;
            let look = look.map_err(|error| Exit::of(&error))?;
            Ok::<_, Exit>((manager, look, began.elapsed()))
        };
        let (manager, look, took) = tokio::select! {
            begun = begin => begun?,
            signal = signals.ends() => return Ok(Exit::Signal(signal)),
        };
        let names = args.metrics.iter().map(ToString::to_string);
        let model = Model::new(args.interval, Services::new(names), look);
        let exit = show(model, took, args, &manager, &mut signals).await;
        store::close(&manager).await;
        exit.map_err(|error| {
            say::line(format_args!("the terminal: {error}"));
            Exit::INTERNAL
        })
    })
}

/// How many locks it shows at most.
fn most(args: &Top) -> usize {
    usize::try_from(args.limit).unwrap_or(usize::MAX)
}

/// Shows the screen until a key or a signal ends it. The first look `took` this long.
async fn show(
    mut model: Model,
    took: Duration,
    args: &Top,
    manager: &LockManager,
    signals: &mut Signals,
) -> io::Result<Exit> {
    let (tell, mut told) = mpsc::channel(16);
    let (choose, chosen) = watch::channel(model.chosen_key().map(ToOwned::to_owned));
    let (prefix, pause) = (args.prefix.clone(), args.interval);
    let looking = look::keep_looking(
        took,
        manager.clone(),
        prefix,
        most(args),
        pause,
        chosen,
        tell.clone(),
    );
    tokio::spawn(looking);
    for (number, endpoint) in args.metrics.iter().cloned().enumerate() {
        tokio::spawn(look::keep_asking(number, endpoint, pause, tell.clone()));
    }

    let mut screen = Screen::take()?;
    let mut keys = EventStream::new();
    let mut drawing = Drawing::new(Palette::from_env());
    // In an outage, the screen shows how old its data are, so it is drawn at least once a second.
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        screen.draw(|frame| drawing.draw(&model, frame))?;
        tokio::select! {
            event = next(&mut keys) => {
                let action = match event {
                    Some(Ok(Event::Key(key))) => model.press(key),
                    // The screen may have another size: the next drawing asks for it.
                    Some(Ok(_)) => Action::None,
                    Some(Err(error)) => return Err(error),
                    None => Action::Quit,
                };
                match action {
                    Action::None => {}
                    Action::Quit => return Ok(Exit::OK),
                    Action::Break(lease) => {
                        tokio::spawn(look::break_lease(manager.clone(), lease, tell.clone()));
                    }
                    Action::Interrupt => return Ok(Exit::Signal(Signal::INT.as_raw())),
                    // TSTP goes to the whole job, and so to this process too, which handles it
                    // below.
                    Action::Stop => terminal::stop_job(),
                    Action::Redraw => screen.take_again()?,
                }
            }
            Some(news) = told.recv() => {
                if let News::Broken(..) = news {
                    // This has the chosen key looked at once more, to show who has the lock now.
                    choose.send_modify(|_| ());
                }
                hear(&mut model, news);
            }
            signal = signals.next() => match signal {
                Signal::TSTP => {
                    screen.give_back();
                    terminal::stop_oneself();
                    screen.take_again()?;
                }
                // It may have been stopped by STOP, which it cannot see beforehand.
                Signal::CONT => screen.take_again()?,
                signal if HARMLESS.contains(&signal) => {}
                signal => return Ok(Exit::Signal(signal.as_raw())),
            },
            _ = second.tick() => {}
        }
        if screen.is_lost() {
            return Ok(Exit::INTERNAL);
        }
        let key = model.chosen_key();
        choose.send_if_modified(|chosen| {
            let is_other = chosen.as_deref() != key;
            if is_other {
                *chosen = key.map(ToOwned::to_owned);
            }
            is_other
        });
    }
}

async fn next(keys: &mut EventStream) -> Option<io::Result<Event>> {
    poll_fn(|context| Pin::new(&mut *keys).poll_next(context)).await
}

fn hear(model: &mut Model, news: News) {
    match news {
        News::Looked(Ok(look)) => model.looked(look),
        News::Looked(Err(error)) => {
            // The line on the screen says already that the store does not answer. It has room for
            // the reason only.
            let why = match error {
                LockError::Unavailable { reason, .. } => reason,
                error => error.to_string(),
            };
            model.failed(Instant::now(), why);
        }
        News::Chosen(key, lock) => model.chosen = Some((key, lock)),
        News::Broken(lease, broken) => {
            let broken = broken.map_err(|error| error.to_string());
            model.tried_to_break(&lease, broken);
        }
        News::Scraped(number, at, answer) => model.scraped(number, at, answer),
    }
}
