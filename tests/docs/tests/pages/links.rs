//! Links within the repository.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::markdown::{pages, root};
use crate::none_wrong;

/// The list of the book's pages, which is none itself.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

#[test]
fn every_link_leads_somewhere() {
    let (root, pages) = (root(), pages());
    let mut wrong = Vec::new();
    for page in &pages {
        for link in page.links() {
            let target = &link.what.target;
            let Some((path, anchor)) = within(&page.path, target) else {
                continue;
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
                let (path, _) = within(&page.path, &link.what.target)?;
                Some(path)
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

/// It is shown by registries too, where nothing lies beside it.
#[test]
fn the_front_page_names_the_repository_in_its_links() {
    let pages = pages();
    let front = pages.iter().find(|page| page.path == "README.md");
    let mut wrong = Vec::new();
    for link in front.expect("the front page").links() {
        let target = link.what.target;
        if !target.contains("://") && !target.starts_with('#') {
            wrong.push(format!("README.md:{}: {target}", link.line));
        }
    }
    none_wrong(&wrong);
}

/// Where the repository is on the web: what is written there as pages, and as images.
const REPOSITORY: [&str; 2] = [
    "https://github.com/dlock-rs/dlock/blob/HEAD/",
    "https://github.com/dlock-rs/dlock/raw/HEAD/",
];

/// The path, from the root, of what a page calls `target`, and the anchor there. `None`:
/// it is not in the repository.
fn within<'a>(page: &str, target: &'a str) -> Option<(PathBuf, &'a str)> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let ours = REPOSITORY.iter().find_map(|root| path.strip_prefix(root));
    let path = match ours {
        Some(path) => PathBuf::from(path),
        None if target.contains("://") || target.starts_with("mailto:") => return None,
        None if path.is_empty() => PathBuf::from(page),
        None => beside(page, path),
    };
    Some((path, anchor))
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
