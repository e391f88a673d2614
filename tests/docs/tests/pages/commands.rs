//! Commands of cargo and scripts of ours name what there is.

use std::collections::BTreeSet;

use cargo_metadata::TargetKind;

use crate::markdown::{pages, root};
use crate::{metadata, none_wrong};

#[test]
fn every_command_names_what_there_is() {
    let workspace = Workspace::read();
    let mut wrong = Vec::new();
    for page in pages() {
        let mut commands = Vec::new();
        for block in page.blocks() {
            if block.what.language() == Some("console") {
                let lines = block.what.text.lines().zip(block.line + 1..);
                let typed = lines.filter_map(|(line, n)| Some((n, line.strip_prefix("$ ")?)));
                commands.extend(typed.map(|(n, command)| (n, command.to_owned())));
            }
        }
        for code in page.codes() {
            if code.what.starts_with("cargo ") || code.what.starts_with("./") {
                commands.push((code.line, code.what));
            }
        }
        for (line, command) in commands {
            if let Err(error) = workspace.check(&command) {
                wrong.push(format!("{}:{line}: `{command}`: {error}", page.path));
            }
        }
    }
    none_wrong(&wrong);
}

/// What a command may name.
struct Workspace {
    packages: BTreeSet<String>,
    features: BTreeSet<String>,
    /// The kind and name of each target.
    targets: BTreeSet<(&'static str, String)>,
}

impl Workspace {
    fn read() -> Self {
        let mut workspace = Self {
            packages: BTreeSet::new(),
            features: BTreeSet::new(),
            targets: BTreeSet::new(),
        };
        for package in metadata().packages {
            workspace.packages.insert(package.name.to_string());
            workspace.features.extend(package.features.into_keys());
            for target in package.targets {
                let kind = match target.kind.first() {
                    Some(TargetKind::Example) => "--example",
                    Some(TargetKind::Test) => "--test",
                    Some(TargetKind::Bench) => "--bench",
                    Some(TargetKind::Bin) => "--bin",
                    _ => continue,
                };
                workspace.targets.insert((kind, target.name));
            }
        }
        workspace
    }

    fn check(&self, command: &str) -> Result<(), String> {
        let command = command.split(" # ").next().unwrap_or_default();
        // Variables may stand before a command.
        let mut words = command
            .split_whitespace()
            .skip_while(|word| word.contains('='));
        match words.next() {
            Some("cargo") => self.check_cargo(words),
            Some(script) if script.starts_with("./") && !root().join(script).exists() => {
                Err("there is no such file".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn check_cargo<'a>(&self, words: impl Iterator<Item = &'a str>) -> Result<(), String> {
        // Behind `--`, it is the program's business.
        let mut words = words.take_while(|word| *word != "--");
        while let Some(word) = words.next() {
            let (option, known): (_, &dyn Fn(&str) -> bool) = match word {
                "--example" | "--test" | "--bench" | "--bin" => (word, &|name| {
                    let mut targets = self.targets.iter();
                    targets.any(|(kind, known)| (*kind, &**known) == (word, name))
                }),
                "-p" | "--package" => (word, &|name| self.packages.contains(name)),
                "--features" | "-F" => (word, &|names| {
                    names.split(',').all(|name| self.features.contains(name))
                }),
                _ => continue,
            };
            let value = words.next().unwrap_or_default();
            if !known(value) {
                return Err(format!("there is no {option} {value}"));
            }
        }
        Ok(())
    }
}
