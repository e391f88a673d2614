//! `dlock ls` and `dlock show`: what the store knows of locks. All that is printed of a
//! holder stands here.

use std::time::Duration;

use dlock::backend::{HolderInfo, LockInfo, Mode};
use serde_json::{Value, json};

use crate::args::{Common, Form, Ls, Show, Sort};
use crate::exit::Exit;
use crate::{output, say, store};

pub(crate) fn ls(args: &Ls, common: &Common) -> Result<Exit, Exit> {
    let mut locks = store::ask(
        common,
        |manager| async move { manager.list(&args.prefix).await },
    )?;
    locks.sort_by(|a, b| a.key.cmp(&b.key));
    match args.sort {
        Sort::Key => {}
        Sort::Left => locks.sort_by_key(|lock| left(lock).unwrap_or(Duration::MAX)),
        Sort::Waiters => locks.sort_by_key(|lock| std::cmp::Reverse(lock.waiters)),
    }
    print(&locks, args.output)
}

pub(crate) fn show(args: &Show, common: &Common) -> Result<Exit, Exit> {
    let lock = store::ask(
        common,
        |manager| async move { manager.inspect(&args.key).await },
    )?;
    if lock.is_none() && args.output != Form::Json {
        say::line(format_args!("lock `{}`: nobody holds it", args.key));
    }
    let form = match args.output {
        Form::Table => Form::Wide,
        form => form,
    };
    match lock {
        None if form == Form::Wide => Ok(Exit::OK),
        lock => print(&Vec::from_iter(lock), form),
    }
}

fn print(locks: &[LockInfo], form: Form) -> Result<Exit, Exit> {
    let text = match form {
        Form::Json => {
            let locks: Vec<_> = locks.iter().map(as_json).collect();
            format!("{:#}\n", Value::Array(locks))
        }
        Form::Table => table(locks.iter().map(|lock| of_lock(lock).to_vec()), &LOCK),
        Form::Wide => table(locks.iter().flat_map(of_holders), &HOLDER),
    };
    output::write(text.as_bytes())
}

/// A line for each lock.
const LOCK: [&str; 5] = ["KEY", "MODE", "HOLDER", "LEFT", "WAITERS"];

fn of_lock(lock: &LockInfo) -> [String; 5] {
    let holder = match (&lock.done, &lock.holders[..]) {
        (Some(done), _) => owner(done),
        (None, []) => "-".to_owned(),
        (None, [one]) => owner(one),
        (None, [first, rest @ ..]) => format!("{} +{}", owner(first), rest.len()),
    };
    [
        printable(&lock.key),
        mode(lock),
        holder,
        time(left(lock)),
        lock.waiters.to_string(),
    ]
}

/// A line for each holder.
const HOLDER: [&str; 5] = ["KEY", "MODE", "LEFT", "WAITERS", "OWNER"];

fn of_holders(lock: &LockInfo) -> impl Iterator<Item = Vec<String>> {
    holders(lock).map(|holder| {
        vec![
            printable(&lock.key),
            mode(lock),
            time(holder.expires_in),
            lock.waiters.to_string(),
            owner(holder),
        ]
    })
}

fn as_json(lock: &LockInfo) -> Value {
    let holder = |holder: &HolderInfo| {
        json!({
            "owner": holder.owner,
            "left_ms": holder.expires_in.map(milliseconds),
        })
    };
    json!({
        "key": lock.key,
        "mode": word(lock.mode),
        "permits": match lock.mode {
            Mode::Permits(most) => json!(most),
            _ => Value::Null,
        },
        "done": lock.done.as_ref().map(holder),
        "holders": lock.holders.iter().map(holder).collect::<Vec<_>>(),
        "waiters": lock.waiters,
    })
}

/// Who holds it, or has done it.
fn holders(lock: &LockInfo) -> impl Iterator<Item = &HolderInfo> {
    lock.holders.iter().chain(&lock.done)
}

/// Until the first of its holders ends, unless it is renewed.
fn left(lock: &LockInfo) -> Option<Duration> {
    holders(lock).filter_map(|holder| holder.expires_in).min()
}

fn mode(lock: &LockInfo) -> String {
    match lock.mode {
        _ if lock.done.is_some() => "done".to_owned(),
        Mode::Permits(most) => format!("{} of {most}", lock.holders.len()),
        mode => word(mode).to_owned(),
    }
}

fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Write => "write",
        Mode::Read => "read",
        Mode::Permits(_) => "permits",
        _ => "other",
    }
}

fn owner(holder: &HolderInfo) -> String {
    printable(&holder.owner)
}

fn time(time: Option<Duration>) -> String {
    let Some(time) = time else {
        return "-".to_owned();
    };
    match time.as_secs() {
        0 => format!("{}ms", time.as_millis()),
        seconds @ 1..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        seconds => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What others wrote into the store does not steer the terminal.
fn printable(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// In columns as wide as what is in them; the last one ends with its text.
fn table<const N: usize>(rows: impl Iterator<Item = Vec<String>>, head: &[&str; N]) -> String {
    let head = head.iter().map(ToString::to_string).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width = |column| {
        let widths = rows.iter().filter_map(|row| row.get(column));
        widths
            .map(|text: &String| text.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:width$}  "))
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
