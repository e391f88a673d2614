//! Writes the snippets of all pages into one test file, `snippets.rs`.
//!
//! A page shows what its reader needs and no more, so a snippet is completed
//! here: it is given the usual imports and what its page takes for granted (see
//! `src/lib.rs`), and statements get a function around them. As a page is read
//! from its top, a snippet may use what those above it have defined: each is a
//! module within the one before.
//!
//! A snippet of statements is run, in a process whose locks are `memory:`, and
//! so is every test in it; with `no_run` behind the `rust` it is compiled only.
//! Tests that a page does not print are in `tests/snippets/pages/`, in a file named
//! like its module. They see what the page has defined.

#[allow(dead_code, reason = "the tests use the rest")]
mod markdown;

use std::path::Path;
use std::{env, fs};

use syn::parse::Parser as _;

use markdown::{Block, On, PLACES, Page, pages, root};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=markdown.rs");
    for place in PLACES {
        println!("cargo::rerun-if-changed={}", root().join(place).display());
    }
    let mut code = String::new();
    for page in pages() {
        write_page(&mut code, &page);
    }
    let folder = env::var_os("OUT_DIR").expect("cargo says where");
    let folder = Path::new(&folder);
    fs::write(folder.join("snippets.rs"), code).expect("a file of our own");
    fs::write(folder.join("cron.rs"), cron_recipe()).expect("a file of our own");
}

/// The recipe that needs a clock, for a test of its own, below what all recipes use.
fn cron_recipe() -> String {
    let pages = pages();
    let recipes = pages.iter().find(|page| page.path == "docs/recipes.md");
    let snippets = recipes.expect("the page").blocks().into_iter();
    let mut snippets = snippets.map(|snippet| snippet.what.text);
    let usual = snippets.next().expect("what all of them use");
    let cron = snippets.find(|text| text.contains("use tokio_cron_scheduler"));
    usual + &cron.expect("the recipe for `tokio-cron-scheduler`")
}

fn write_page(code: &mut String, page: &Page) {
    let mut snippets = page.blocks();
    snippets.retain(|block| block.what.language() == Some("rust"));
    if snippets.is_empty() {
        return;
    }
    let name = module_of(page);
    let has_its_own = Path::new("src").join(format!("{name}.rs")).exists();
    let granted = if has_its_own { &name } else { "usual" };
    let granted = format!("#[allow(unused_imports)] use dlock_docs_tests::{granted}::*;");
    code.push_str(&format!("mod {name} {{\n{granted}\n"));
    for snippet in &snippets {
        write_snippet(code, page, snippet);
    }
    // Tests that the page does not print.
    let tests = root().join(format!("tests/docs/tests/snippets/pages/{name}.rs"));
    if tests.exists() {
        code.push_str(&format!("#[path = {tests:?}]\nmod tests;\n"));
    }
    code.push_str(&"}\n".repeat(snippets.len() + 1));
}

/// Leaves the module open.
fn write_snippet(code: &mut String, page: &Page, snippet: &On<Block>) {
    let (path, line, text) = (&page.path, snippet.line, &snippet.what.text);
    let others: Vec<_> = snippet.what.info[1..].iter().map(String::as_str).collect();
    let runs = match others[..] {
        [] => true,
        ["no_run"] => false,
        _ => panic!("{path}:{line}: {others:?} behind `rust`; only `no_run` is known"),
    };
    let kind = Kind::of(text).unwrap_or_else(|error| panic!("{path}:{line}: {error}:\n{text}"));
    let snippet = match kind {
        Kind::Items => text.clone(),
        Kind::Statements { end } => {
            let test = if runs {
                "#[tokio::test(start_paused = true)]\n\
                 async fn runs() -> dlock_docs_tests::Answer { dlock_docs_tests::in_memory(snippet()).await }\n"
            } else {
                ""
            };
            format!(
                "{test}async fn snippet() -> dlock_docs_tests::Answer {{\n{text}{end}\nOk(())\n}}\n"
            )
        }
    };
    let above = "#[allow(unused_imports)] use super::*;";
    code.push_str(&format!(
        "// {path}:{line}\nmod line_{line} {{\n{above}\n{snippet}"
    ));
}

/// What a snippet is made of.
enum Kind {
    Items,
    /// And what is missing behind the last.
    Statements {
        end: &'static str,
    },
}

impl Kind {
    fn of(text: &str) -> syn::Result<Self> {
        if let Ok(file) = syn::parse_str::<syn::File>(text)
            // A macro that stands alone may be either, and is a call as a rule.
            && !file.items.iter().all(|item| matches!(item, syn::Item::Macro(_)))
        {
            return Ok(Self::Items);
        }
        // An error is told of by this one, which reads items too.
        let statements = syn::Block::parse_within.parse_str(text)?;
        let end = match statements.last() {
            Some(syn::Stmt::Expr(_, None)) => ";",
            _ => "",
        };
        Ok(Self::Statements { end })
    }
}

/// `docs/stores/redis.md` is `stores_redis`.
fn module_of(page: &Page) -> String {
    let path = page.path.strip_prefix("docs/").unwrap_or(&page.path);
    let path = path.strip_suffix(".md").unwrap_or(path);
    path.replace(['/', '-', '.'], "_").to_lowercase()
}
