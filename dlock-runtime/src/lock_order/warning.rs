//! The text of a warning. It is one line, since logs are read by line.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::edge::{Edge, Node, WrittenLock};
use crate::key::Shown;

/// The locks in the order in which they are waited for.
pub(super) fn path(circle: &[Edge]) -> String {
    let held = circle.iter().map(|edge| node(&edge.held.node));
    let first = circle.first().map(|edge| node(&edge.held.node));
    let path: Vec<_> = held.chain(first).collect();
    path.join(" -> ")
}

/// What is wrong, where, and what to do.
pub(super) fn text(circle: &[Edge]) -> String {
    let is_one_lock = circle.iter().all(|edge| edge.wanted.node == edge.held.node);
    let mut text = String::from("possible deadlock: ");
    text.push_str(if is_one_lock {
        "two keys of one template are taken one under the other, in either order, and tasks that \
         do so at the same time"
    } else {
        "these locks are taken in a circle, and tasks that meet in it"
    });
    text.push_str(" wait for each other, for ever if they have no timeout: ");
    text.push_str(&clauses(circle));
    text.push_str(if is_one_lock {
        ". Take both at once where the first is taken"
    } else {
        ". Take them in the same order everywhere; or take both at once where the first is taken"
    });
    text.push_str(
        ", as keys that are taken at once are sorted, and what is called inside re-enters: ",
    );
    text.push_str(&proposals(circle));
    if circle_has_readers(circle) {
        text.push_str(
            ". Readers are no exception: one that comes behind a waiting writer waits for it",
        );
    }
    text
}

/// What was seen at each edge.
fn clauses(circle: &[Edge]) -> String {
    let clauses = distinct(circle.iter().map(|edge| {
        let Edge { held, wanted, .. } = edge;
        if edge.at_once {
            format!(
                "{} and {} are taken at once at {}, the lesser key first",
                lock(held),
                lock(wanted),
                held.site
            )
        } else {
            format!(
                "{}, taken at {}, is held while {} is taken at {}",
                lock(held),
                held.site,
                lock(wanted),
                wanted.site
            )
        }
    }));
    if let [clause] = &clauses[..] {
        return clause.clone();
    }
    let numbered = clauses.iter().enumerate();
    let numbered: Vec<_> = numbered
        .map(|(index, clause)| format!("({}) {clause}", index + 1))
        .collect();
    numbered.join("; ")
}

/// How to take both locks of each edge at once.
fn proposals(circle: &[Edge]) -> String {
    let nested = circle.iter().filter(|edge| !edge.at_once);
    let proposals = distinct(nested.map(|Edge { held, wanted, .. }| {
        let both = format!("[{}, {}]", own(held), others(wanted));
        let how = match held.template {
            "unnamed" => format!("lock({both})"),
            _ => format!("key = {both}"),
        };
        format!("`{how}` at {}", held.site)
    }));
    proposals.join(", ")
}

fn circle_has_readers(circle: &[Edge]) -> bool {
    circle
        .iter()
        .any(|edge| edge.held.mode.is_shared() || edge.wanted.mode.is_shared())
}

/// The lock as its user knows it.
fn lock(written: &WrittenLock) -> String {
    let mut text = match &written.node {
        Node::Key(key) if is_named_by(written, key) => format!("`{}`", Shown(key)),
        Node::Key(key) => format!("`{}` (here `{}`)", written.template, Shown(key)),
        Node::Shape(_) => format!("`{}`", written.template),
    };
    if written.mode.is_shared() {
        let _ = write!(text, " ({})", written.mode.held());
    }
    text
}

/// The key as it is written where it is taken.
fn own(written: &WrittenLock) -> String {
    match &written.node {
        Node::Key(key) if is_named_by(written, key) => format!("\"{}\"", Shown(key)),
        Node::Key(_) => written.template.to_owned(),
        Node::Shape(_) => format!("\"{}\"", written.template),
    }
}

/// The key as it must be written where its values have other names.
fn others(written: &WrittenLock) -> String {
    match &written.node {
        Node::Key(_) => own(written),
        Node::Shape(shape) => format!("\"{}\"", shape.replace("<>", "<…>")),
    }
}

/// Whether the key is its own name, so that no template has to be shown.
fn is_named_by(written: &WrittenLock, key: &str) -> bool {
    written.template == "unnamed" || written.template == key
}

fn node(node: &Node) -> String {
    match node {
        Node::Shape(shape) => shape.clone(),
        Node::Key(key) => Shown(key).to_string(),
    }
}

fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = HashSet::new();
    texts.filter(|text| seen.insert(text.clone())).collect()
}
