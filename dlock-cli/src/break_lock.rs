//! `dlock break`.

use std::io::{self, IsTerminal};

use dlock::FencingToken;
use dlock::backend::{HolderInfo, LockInfo, ProcessInfo};

use crate::args::{Break, Common};
use crate::exit::Exit;
use crate::show::{age, printable};
use crate::{say, store};

pub(crate) fn break_lock(args: &Break, common: &Common) -> Result<Exit, Exit> {
    let Break { key, .. } = args;
    if let Some(owner) = &args.waiter {
        return take_out(key, owner, common);
    }
    if let Some(token) = args.token {
        let token = FencingToken::from(token);
        let broken = store::ask(common, |manager| async move {
            manager.break_lock(key, Some(token)).await
        })?;
        return match broken {
            Some(holder) => Ok(told(key, &holder)),
            None => not_there(key, &format!("token {token}"), common),
        };
    }
    let owner = match &args.holder {
        Some(owner) => owner.clone(),
        None => match chosen(args, common)? {
            Some(owner) => owner,
            None => return Ok(Exit::OK),
        },
    };
    let owner = &owner;
    let broken = store::ask(common, |manager| async move {
        manager.break_holder(key, owner).await
    })?;
    match broken {
        Some(holder) => Ok(told(key, &holder)),
        None => not_there(key, "this owner", common),
    }
}

/// The owner of the only holder, if the user says yes or `--yes` is given. `None` if nobody holds
/// the lock.
fn chosen(args: &Break, common: &Common) -> Result<Option<String>, Exit> {
    let Break { key, .. } = args;
    let asks = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !asks {
        say::line(format_args!(
            "lock `{key}`: there is no terminal to ask in; say whom with --token, --holder or \
             --waiter, or that it is to be broken whoever holds it with --yes; see `dlock break \
             --help`"
        ));
        return Err(Exit::USAGE);
    }
    let lock = look(key, common)?;
    match lock.as_ref().map_or(&[][..], |lock| &lock.holders) {
        [] => {
            nobody(key, lock.as_ref());
            Ok(None)
        }
        [holder] if args.yes || agrees(key, holder) => Ok(Some(holder.owner.clone())),
        [_] => {
            say::line(format_args!("lock `{key}`: nothing was broken"));
            Err(Exit::Code(Exit::BUSY))
        }
        several => {
            say::line(format_args!(
                "lock `{key}`: {} hold it together; say whose lease to end with --holder, as \
                 `dlock show` prints them",
                several.len()
            ));
            Err(Exit::USAGE)
        }
    }
}

fn agrees(key: &str, holder: &HolderInfo) -> bool {
    say::raw(&format!(
        "Lock `{}` is held by {}, for {}.\nWhat it does goes on beside the next holder until it \
         is told, at its next renewal.\nBreak it? [y/N] ",
        printable(key),
        who(holder.process.as_ref(), &holder.owner),
        age(holder),
    ));
    let mut answer = String::new();
    // An answer that cannot be read is not a yes.
    let _ = io::stdin().read_line(&mut answer);
    matches!(answer.trim(), "y" | "Y" | "yes" | "Yes")
}

fn take_out(key: &str, owner: &str, common: &Common) -> Result<Exit, Exit> {
    let waiter = store::ask(common, |manager| async move {
        manager.break_waiter(key, owner).await
    })?;
    say::line(match waiter {
        Some(waiter) => format!(
            "lock `{key}`: taken out of the queue, and told so: {}",
            who(waiter.process.as_ref(), &waiter.owner)
        ),
        None => format!("lock `{key}`: nobody waits by this name; it may have the lock by now"),
    });
    Ok(Exit::OK)
}

fn look(key: &str, common: &Common) -> Result<Option<LockInfo>, Exit> {
    store::ask(common, |manager| async move { manager.inspect(key).await })
}

fn told(key: &str, holder: &HolderInfo) -> Exit {
    say::line(format_args!(
        "lock `{key}`: broken; {} had it, and is told at its next renewal",
        who(holder.process.as_ref(), &holder.owner)
    ));
    Exit::OK
}

/// The one who was named does not hold the lock. The exit code tells whether somebody else does.
fn not_there(key: &str, whom: &str, common: &Common) -> Result<Exit, Exit> {
    let lock = look(key, common)?;
    if lock.as_ref().is_some_and(|lock| !lock.holders.is_empty()) {
        say::line(format_args!(
            "lock `{key}`: nobody with {whom} holds it, and nothing was broken; see who does \
             with `dlock show`"
        ));
        return Ok(Exit::Code(Exit::BUSY));
    }
    nobody(key, lock.as_ref());
    Ok(Exit::OK)
}

/// Says that nobody holds the lock. `dlock ls` lists a lock that is remembered as done like one
/// that is held, so the message explains this.
fn nobody(key: &str, lock: Option<&LockInfo>) {
    let hint = match lock.is_some_and(|lock| lock.done.is_some()) {
        true => "; it is remembered as done, which `dlock forget` drops",
        false => "",
    };
    say::line(format_args!("lock `{key}`: nobody holds it{hint}"));
}

pub(crate) fn who(process: Option<&ProcessInfo>, owner: &str) -> String {
    match process {
        Some(process) => format!(
            "{} on {} (pid {})",
            printable(&process.label),
            printable(&process.host),
            process.pid
        ),
        None => printable(owner),
    }
}
