//! `dlock`: locks for scripts and cron jobs, and a look at who holds what.

#[cfg(not(unix))]
compile_error!("`dlock` runs commands in process groups, which only Unix has");

mod args;
mod break_lock;
mod connect;
mod doctor;
mod duration;
mod exit;
mod forget;
mod output;
mod repeat;
mod run;
mod say;
mod show;
mod store;
mod top;
mod wait;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use self::args::{Args, Command};

fn main() -> ExitCode {
    let mut given = std::env::args_os();
    // The tool starts itself as the launcher and as the watcher. Users do not need these modes, so
    // clap does not know them.
    if let (_, Some(first)) = (given.next(), given.next()) {
        if first == run::launch::MODE {
            return run::launch::main(given);
        }
        if first == run::watch::MODE {
            return run::watch::main(given);
        }
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return args::refuse(&error).into(),
    };
    say::set_verbose(args.common.verbose);
    let exit = match args.command {
        Command::Run(command) => run::run(&command, &args.common),
        Command::Ls(command) => match command.watch {
            Some(pause) => repeat::ls(&command, pause, &args.common),
            None => show::ls(&command, &args.common),
        },
        Command::Show(command) => show::show(&command, &args.common),
        Command::Top(command) => top::top(&command, &args.common),
        Command::Wait(command) => wait::wait(&command, &args.common),
        Command::Break(command) => break_lock::break_lock(&command, &args.common),
        Command::Forget(command) => forget::forget(&command, &args.common),
        Command::Doctor(command) => doctor::doctor(&command, &args.common),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "dlock", &mut script);
            output::write(&script)
        }
    };
    exit.unwrap_or_else(|exit| exit).end()
}
