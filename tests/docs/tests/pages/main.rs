//! What of the pages can be checked besides their snippets.

mod book;
mod commands;
mod format;
mod guarantees;
mod links;
mod manifests;
#[allow(dead_code, reason = "the build script uses the rest")]
#[path = "../../markdown.rs"]
mod markdown;
mod metrics;
mod settings;
mod ttls;

/// What cargo says of the workspace.
fn metadata() -> cargo_metadata::Metadata {
    let mut command = cargo_metadata::MetadataCommand::new();
    let offline = command.no_deps().other_options(["--offline".to_owned()]);
    offline.exec().expect("cargo metadata")
}

/// Fails with all that is wrong at once.
#[track_caller]
fn none_wrong(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Every block of every page, and where it is.
fn blocks() -> impl Iterator<Item = (String, markdown::Block)> {
    markdown::pages().into_iter().flat_map(|page| {
        let place = |line| format!("{}:{line}", page.path);
        let blocks = page.blocks().into_iter();
        let placed = blocks.map(|block| (place(block.line), block.what));
        placed.collect::<Vec<_>>()
    })
}

/// A block that is not named would be checked by nobody.
#[test]
fn every_block_says_what_it_is() {
    const KNOWN: [&str; 9] = [
        "rust", "toml", "yaml", "console", "sql", "lua", "http", "promql", "text",
    ];
    let mut wrong = Vec::new();
    for (place, block) in blocks() {
        let language = block.language();
        if language.is_none_or(|language| !KNOWN.contains(&language)) {
            wrong.push(format!("{place}: {language:?}"));
        }
    }
    none_wrong(&wrong);
}
