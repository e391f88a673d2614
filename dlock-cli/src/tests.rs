//! Compares the options and exit codes of the tool with the page `docs/cli.md`. Scripts rely on
//! both.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Command, CommandFactory};

use crate::args::Args;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");

/// The source of the exit codes.
const EXIT: &str = include_str!("exit.rs");

/// The rows of the first table after this heading whose first column has the name `head`.
fn table(heading: &str, head: &str) -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let mut lines = page.lines().skip_while(|line| *line != heading).skip(1);
    let start = format!("| {head} |");
    assert!(
        lines.any(|line| line.starts_with(&start)),
        "{heading}: no table `{head}`"
    );
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let row = row.trim_matches('|').replace("\\|", "\u{1}");
        let cells = row.split('|');
        cells
            .map(|cell| cell.trim().replace('\u{1}', "|"))
            .collect()
    })
    .collect()
}

/// What stands between backticks.
fn codes(text: &str) -> Vec<String> {
    let codes = text.split('`').skip(1).step_by(2);
    codes.map(ToOwned::to_owned).collect()
}

fn subcommand(name: &str) -> Command {
    let mut tool = Args::command();
    tool.build();
    let found = tool.find_subcommand(name).expect("a command");
    found.clone()
}

/// The options of a command without the global ones: the names of each, such as `-w` and
/// `--timeout`, and its default, if it takes a value.
fn options(command: &Command) -> BTreeMap<BTreeSet<String>, Option<String>> {
    let own = command
        .get_arguments()
        .filter(|argument| !argument.is_global_set() && argument.get_id() != "help");
    let options = own.filter(|argument| !argument.is_positional());
    options
        .map(|option| {
            let short = option.get_short().map(|short| format!("-{short}"));
            let long = option.get_long().map(|long| format!("--{long}"));
            let default = option.get_default_values().first();
            let default = default.map(|default| default.to_string_lossy().into_owned());
            let default = default.filter(|_| option.get_action().takes_values());
            (short.into_iter().chain(long).collect(), default)
        })
        .collect()
}

/// The options in the table under this heading: the names of each, and its default, if the table
/// has a column for it.
fn documented(heading: &str) -> BTreeMap<BTreeSet<String>, Option<String>> {
    let rows = table(heading, "option").into_iter();
    rows.map(|row| {
        let names = codes(&row[0]).into_iter().filter_map(|code| {
            let name = code.split([' ', '=']).next()?;
            Some(name.to_owned())
        });
        let default = row.get(2).map(|default| default.replace('`', ""));
        (names.collect(), default)
    })
    .collect()
}

#[test]
fn the_options_of_run_and_break_are_those_of_their_tables() {
    for (heading, name) in [("## `dlock run`", "run"), ("## `dlock break`", "break")] {
        let (taken, documented) = (options(&subcommand(name)), documented(heading));
        let names = |options: &BTreeMap<BTreeSet<String>, _>| -> Vec<_> {
            options.keys().cloned().collect()
        };
        assert_eq!(names(&taken), names(&documented), "{name}");
        for (option, default) in taken {
            if let Some(default) = default {
                let told = documented[&option].as_deref();
                assert_eq!(told, Some(&*default), "{name}: {option:?}");
            }
        }
    }
}

#[test]
fn every_command_and_option_is_on_the_page() {
    let mut tool = Args::command();
    tool.build();
    let all = tool.get_subcommands().map(Command::get_name);
    let all: BTreeSet<_> = all.filter(|name| *name != "help").collect();
    let rows = table("# The command line: `dlock`", "command");
    let told: Vec<_> = rows.iter().flat_map(|row| codes(&row[0])).collect();
    let told = told.iter().filter_map(|code| code.split(' ').nth(1));
    assert_eq!(told.collect::<BTreeSet<_>>(), all);

    let page = std::fs::read_to_string(PAGE).expect("the page");
    for command in tool.get_subcommands() {
        for names in options(command).into_keys() {
            let is_told = |name: &String| {
                page.contains(&format!("`{name}")) || page.contains(&format!(" {name} "))
            };
            assert!(
                names.iter().any(is_told),
                "{}: {names:?}",
                command.get_name()
            );
        }
    }
}

/// The numbers in a text that can be exit codes.
fn numbers(text: &str) -> BTreeSet<u8> {
    let words = text.split(|c: char| !c.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn the_exit_codes_are_those_of_the_table() {
    let rows = table("## `dlock run`", "exit code");
    let told: BTreeSet<_> = rows.iter().flat_map(|row| numbers(&row[0])).collect();
    let consts = EXIT
        .lines()
        .filter(|line| line.contains("pub(crate) const "));
    let consts = consts.filter_map(|line| line.split_once(" = "));
    // A constant that is a sum is the code of a signal, which the table does not list as a number.
    let exits: BTreeSet<_> = consts
        .filter(|(_, value)| !value.contains('+'))
        .flat_map(|(_, value)| numbers(value))
        .collect();
    assert_eq!(told, exits);

    // `--help` lists some of these codes. 128 stands there for all signals.
    for name in ["run", "break", "doctor"] {
        let help = subcommand(name);
        let help = help.get_after_help().expect("examples").to_string();
        let (_, codes) = help.split_once("Exit codes: ").expect("codes");
        let codes: BTreeSet<_> = numbers(codes)
            .into_iter()
            .filter(|code| *code != 128)
            .collect();
        assert!(
            codes.len() > 3 && codes.is_subset(&told),
            "{name}: {codes:?}"
        );
    }
}
