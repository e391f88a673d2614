//! Links within the repository.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::book::SUMMARY;
use crate::markdown::{pages, root};
use crate::none_wrong;

#[test]
fn every_link_leads_somewhere() {
    let (root, pages) = (root(), pages());
    let mut wrong = Vec::new();
    for page in &pages {
        for link in page.links() {
            let target = &link.what.target;
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() {
                PathBuf::from(&page.path)
            } else {
                beside(&page.path, path)
            };
            let found = match pages.iter().find(|page| Path::new(&page.path) == path) {
                Some(page) => anchor.is_empty() || page.anchors().iter().any(|at| at == anchor),
                None => anchor.is_empty() && root.join(&path).exists(),
            };
            if !found {
                wrong.push(format!("{}:{}: {target}", page.path, link.line));
            }
        }
    }
    none_wrong(&wrong);
}

#[test]
fn every_page_is_linked_from_another() {
    let mut pages = pages();
    // It leads to all, and is where nobody reads.
    pages.retain(|page| page.path != SUMMARY);
    let linked: BTreeSet<_> = pages
        .iter()
        .flat_map(|page| {
            let links = page.links().into_iter();
            let targets = links.filter_map(|link| {
                let target = link.what.target;
                let path = target.split('#').next()?;
                Some(beside(&page.path, path))
            });
            let others = targets.filter(|target| Path::new(&page.path) != target);
            others.collect::<Vec<_>>()
        })
        .collect();
    let in_docs = pages.iter().filter(|page| page.path.starts_with("docs/"));
    let alone = in_docs.filter(|page| !linked.contains(Path::new(&page.path)));
    let alone: Vec<_> = alone
        .map(|page| format!("nothing leads to {}", page.path))
        .collect();
    none_wrong(&alone);
}

/// The path, from the root, of what a page calls `target`.
pub(crate) fn beside(page: &str, target: &str) -> PathBuf {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(part) => path.push(part),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    path
}
