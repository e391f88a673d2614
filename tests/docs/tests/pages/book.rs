//! The book: it has every page of `docs/`, once.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::links::{SUMMARY, beside};
use crate::markdown::{pages, root};
use crate::{metadata, none_wrong};

#[test]
fn every_page_is_in_the_book_once() {
    let pages = pages();
    let summary = pages.iter().find(|page| page.path == SUMMARY);
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    for link in summary.expect("the list").links() {
        let page = beside(SUMMARY, &link.what.target);
        if !named.insert(page) {
            wrong.push(format!("{SUMMARY}:{}: a second time", link.line));
        }
    }
    let in_docs = pages.iter().filter(|page| page.path.starts_with("docs/"));
    for page in in_docs.filter(|page| page.path != SUMMARY) {
        if !named.contains(&PathBuf::from(&page.path)) {
            wrong.push(format!("{} is not in {SUMMARY}", page.path));
        }
    }
    none_wrong(&wrong);
}

/// Where its links to files that are no pages lead.
#[test]
fn the_book_names_the_repository() {
    let book = fs::read_to_string(root().join("docs/book.toml")).expect("its settings");
    let book: toml::Table = book.parse().expect("TOML");
    let url = book["output"]["html"]["git-repository-url"].as_str();
    let mut packages = metadata().packages.into_iter();
    let ours = packages.find_map(|package| package.repository);
    assert!(url.is_some() && ours.is_none_or(|ours| Some(&*ours) == url));
}
