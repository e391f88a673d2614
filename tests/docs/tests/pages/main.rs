//! What of the pages can be checked besides their snippets.

mod commands;
mod format;
mod guarantees;
mod links;
#[allow(dead_code, reason = "the build script uses the rest")]
#[path = "../../markdown.rs"]
mod markdown;
mod metrics;
mod settings;

/// Fails with all that is wrong at once.
#[track_caller]
fn none_wrong(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// A block that is not named would be checked by nobody.
#[test]
fn every_block_says_what_it_is() {
    const KNOWN: [&str; 8] = [
        "rust", "toml", "console", "sql", "lua", "http", "promql", "text",
    ];
    let mut wrong = Vec::new();
    for page in markdown::pages() {
        for block in page.blocks() {
            if block
                .what
                .info
                .first()
                .is_none_or(|word| !KNOWN.contains(&&**word))
            {
                wrong.push(format!(
                    "{}:{}: {:?}",
                    page.path, block.line, block.what.info
                ));
            }
        }
    }
    none_wrong(&wrong);
}
