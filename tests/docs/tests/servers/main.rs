//! What the pages say to a database or a server, said to a real one.

mod fencing;
#[allow(dead_code, reason = "the build script and other tests use the rest")]
#[path = "../../markdown.rs"]
mod markdown;
mod migrating;
mod operations;
#[path = "../../../support/mod.rs"]
mod support;

/// The only block of this kind on the page.
fn block(page: &str, kind: &str) -> String {
    let pages = markdown::pages();
    let page = pages.iter().find(|found| found.path == page);
    let mut blocks = page.expect("the page").blocks().into_iter();
    let mut found = blocks.by_ref().filter(|block| block.what.info == [kind]);
    let block = found.next().unwrap_or_else(|| panic!("no {kind} block"));
    assert!(found.next().is_none(), "a second {kind} block");
    block.what.text
}
