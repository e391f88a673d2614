//! `dlock ls` and `dlock show`: print what the store knows of locks. Other commands use these
//! functions too, so that a holder looks the same everywhere.

use std::time::{Duration, SystemTime};

use dlock::backend::{HolderInfo, LockInfo, Mode, ProcessInfo, WaiterInfo};
use serde_json::{Value, json};

use crate::args::{Common, Form, Ls, Show, Sort};
use crate::exit::Exit;
use crate::{output, say, store};

pub(crate) fn ls(args: &Ls, common: &Common) -> Result<Exit, Exit> {
    let locks = store::ask(
        common,
        |manager| async move { manager.list(&args.prefix).await },
    )?;
    print(&sorted(locks, args.sort), args.output)
}

pub(crate) fn sorted(mut locks: Vec<LockInfo>, by: Sort) -> Vec<LockInfo> {
    locks.sort_by(|a, b| a.key.cmp(&b.key));
    match by {
        Sort::Key => {}
        // By the column, which is that of the first holder. What has none comes last.
        Sort::Age => locks.sort_by_key(|lock| {
            let begun = holders(lock).next().and_then(begun);
            let begun = begun.map(|(moment, _)| moment);
            (begun.is_none(), begun)
        }),
        Sort::Left => locks.sort_by_key(|lock| left(lock).unwrap_or(Duration::MAX)),
        Sort::Waiters => locks.sort_by_key(|lock| std::cmp::Reverse(lock.waiters)),
    }
    locks
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
    output::write(text(locks, form).as_bytes())
}

/// All locks in one JSON array.
pub(crate) fn json(locks: &[LockInfo]) -> Value {
    Value::Array(locks.iter().map(as_json).collect())
}

pub(crate) fn text(locks: &[LockInfo], form: Form) -> String {
    let text = match form {
        Form::Json => format!("{:#}\n", json(locks)),
        Form::Table => table(locks.iter().map(|lock| of_lock(lock).to_vec()), &LOCK),
        Form::Wide => table(locks.iter().flat_map(of_holders), &HOLDER),
    };
    if form == Form::Json {
        return text;
    }
    let queued = || locks.iter().flat_map(of_waiters);
    let mut queue = match queued().next() {
        Some(_) => format!("\n{}", table(queued(), &WAITER)),
        None => String::new(),
    };
    match locks.iter().map(more).sum() {
        0 => {}
        more => queue.push_str(&format!("… {more} more\n")),
    }
    let stored_as = locks.iter().flat_map(|lock| &lock.stored_as);
    let places: String = stored_as
        .map(|place| format!("  {}\n", printable(place)))
        .collect();
    match places.is_empty() {
        true => text + &queue,
        false => format!("{text}{queue}\nIn the store:\n{places}"),
    }
}

/// The columns of the table with one line for each lock.
const LOCK: [&str; 9] = [
    "KEY", "MODE", "HOLDER", "HOST", "PID", "TOKEN", "AGE", "LEFT", "WAITERS",
];

fn of_lock(lock: &LockInfo) -> [String; 9] {
    let first = holders(lock).next();
    let [host, pid] = place(first.and_then(|first| first.process.as_ref()));
    [
        printable(&lock.key),
        mode(lock),
        holder(lock),
        host,
        pid,
        first.map_or_else(nothing, token),
        first.map_or_else(nothing, age),
        time(left(lock)),
        waiters(lock.waiters),
    ]
}

/// The columns of the table with one line for each holder.
const HOLDER: [&str; 10] = [
    "KEY", "MODE", "HOLDER", "HOST", "PID", "TOKEN", "AGE", "LEFT", "WAITERS", "OWNER",
];

fn of_holders(lock: &LockInfo) -> impl Iterator<Item = Vec<String>> {
    holders(lock).map(|holder| {
        let [host, pid] = place(holder.process.as_ref());
        vec![
            printable(&lock.key),
            mode(lock),
            name(holder),
            host,
            pid,
            token(holder),
            age(holder),
            time(holder.expires_in),
            waiters(lock.waiters),
            printable(&holder.owner),
        ]
    })
}

/// How many waiters are behind the part of the queue that the store gives. 0 in a list, where the
/// store gives no queues.
fn more(lock: &LockInfo) -> usize {
    match lock.queue.len() {
        0 => 0,
        given => lock.waiters.unwrap_or(0).saturating_sub(given),
    }
}

/// The columns of the table with one line for each waiter, in the order of the queue.
pub(crate) const WAITER: [&str; 7] = ["PLACE", "MODE", "WAITER", "HOST", "PID", "WAITS", "OWNER"];

pub(crate) fn of_waiters(lock: &LockInfo) -> impl Iterator<Item = Vec<String>> {
    let places = (1_usize..).zip(&lock.queue);
    places.map(|(number, waiter)| {
        let process = waiter.process.as_ref();
        let [host, pid] = place(process);
        vec![
            number.to_string(),
            word(waiter.mode).to_owned(),
            process.map_or_else(nothing, |process| printable(&process.label)),
            host,
            pid,
            process.map_or_else(nothing, |process| format!("~{}", since(process.asked_at))),
            printable(&waiter.owner),
        ]
    })
}

fn as_json(lock: &LockInfo) -> Value {
    let holder = |holder: &HolderInfo| {
        let process = holder.process.as_ref();
        json!({
            "owner": holder.owner,
            "host": process.map(|process| &process.host),
            "pid": process.map(|process| process.pid),
            "label": process.map(|process| &process.label),
            "since_ms": holder.since.map(unix),
            "since_by": holder.since.map(|_| match holder.since_by_holder {
                true => "holder",
                false => "store",
            }),
            "asked_at_ms": process.map(|process| unix(process.asked_at)),
            "left_ms": holder.expires_in.map(milliseconds),
            "token": holder.token.map(u64::from),
        })
    };
    let waiter = |waiter: &WaiterInfo| {
        let process = waiter.process.as_ref();
        json!({
            "owner": waiter.owner,
            "mode": word(waiter.mode),
            "host": process.map(|process| &process.host),
            "pid": process.map(|process| process.pid),
            "label": process.map(|process| &process.label),
            "asked_at_ms": process.map(|process| unix(process.asked_at)),
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
        "queue": lock.queue.iter().map(waiter).collect::<Vec<_>>(),
        "stored_as": lock.stored_as,
    })
}

/// The holders, or whoever did the work that is remembered as done.
pub(crate) fn holders(lock: &LockInfo) -> impl Iterator<Item = &HolderInfo> {
    lock.holders.iter().chain(&lock.done)
}

/// The time until the first of its leases ends, unless that is renewed.
pub(crate) fn left(lock: &LockInfo) -> Option<Duration> {
    holders(lock).filter_map(|holder| holder.expires_in).min()
}

pub(crate) fn mode(lock: &LockInfo) -> String {
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

/// The name of the first holder, and how many others there are.
pub(crate) fn holder(lock: &LockInfo) -> String {
    let first = holders(lock).next();
    first.map_or_else(nothing, |first| match holders(lock).count() {
        1 => name(first),
        all => format!("{} +{}", name(first), all - 1),
    })
}

/// The label of a holder. If no process is known, as for locks of other programs, it is the owner.
pub(crate) fn name(holder: &HolderInfo) -> String {
    printable(match &holder.process {
        Some(process) => &process.label,
        None => &holder.owner,
    })
}

/// The first fencing token of its grant.
fn token(holder: &HolderInfo) -> String {
    holder.token.map_or_else(nothing, |token| token.to_string())
}

/// The host and the process id.
pub(crate) fn place(process: Option<&ProcessInfo>) -> [String; 2] {
    match process {
        Some(process) => [printable(&process.host), process.pid.to_string()],
        None => [nothing(), nothing()],
    }
}

/// For how long it has been held. `~` marks a time that is not by the store's clock: it counts from
/// the grant by the holder's clock or, if that is not known either, from the request for the lock.
pub(crate) fn age(holder: &HolderInfo) -> String {
    match begun(holder) {
        Some((moment, true)) => since(moment),
        Some((moment, false)) => format!("~{}", since(moment)),
        None => nothing(),
    }
}

/// Since when it has been held (else, when it was asked for), and whether that is by the store's
/// clock.
pub(crate) fn begun(holder: &HolderInfo) -> Option<(SystemTime, bool)> {
    let held = holder.since.map(|since| (since, !holder.since_by_holder));
    let asked = holder.process.as_ref();
    held.or_else(|| asked.map(|process| (process.asked_at, false)))
}

fn since(moment: SystemTime) -> String {
    time(Some(moment.elapsed().unwrap_or_default()))
}

fn unix(moment: SystemTime) -> u64 {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH);
    since.map(milliseconds).unwrap_or_default()
}

pub(crate) fn waiters(number: Option<usize>) -> String {
    number.map_or_else(nothing, |number| number.to_string())
}

/// Stands for what the store does not say.
pub(crate) fn nothing() -> String {
    "-".to_owned()
}

pub(crate) fn time(time: Option<Duration>) -> String {
    let Some(time) = time else {
        return nothing();
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

/// Escapes control characters: others wrote this text into the store, and it must not control the
/// terminal.
pub(crate) fn printable(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Aligns the rows in columns, each as wide as its longest cell. Lines do not end with blanks.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_behind_those_shown_is_counted() {
        let holder = HolderInfo::new("holder".to_owned(), None);
        let mut lock = LockInfo::new("k".to_owned(), Mode::Write, vec![holder], 1003);
        lock.queue = vec![WaiterInfo::new("first".to_owned(), Mode::Write)];
        let shown = text(&[lock.clone()], Form::Wide);
        assert!(shown.contains("\n… 1002 more\n"), "{shown}");
        lock.waiters = Some(1);
        let shown = text(&[lock.clone()], Form::Wide);
        assert!(!shown.contains("more"), "{shown}");
        // A list has no queues.
        lock.waiters = Some(7);
        lock.queue.clear();
        let shown = text(&[lock], Form::Wide);
        assert!(!shown.contains("more"), "{shown}");
    }
}
