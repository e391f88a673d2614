//! What counts as one lock, and the fact that one lock is waited for while another is held.

use std::panic::Location;
use std::sync::Arc;

use crate::backend::Mode;
use crate::options::Origin;

/// What counts as one lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Node {
    /// All keys of the templates with this shape: `acct:<>`.
    Shape(String),
    /// One key, of a template without values or of no template.
    Key(Arc<str>),
}

impl Node {
    fn of(name: &Arc<str>, origin: Origin) -> Self {
        shape_of(origin.shape).map_or_else(|| Self::Key(Arc::clone(name)), Self::Shape)
    }
}

/// The template with `<>` for each `<…>`; `None` if it has none.
fn shape_of(template: &str) -> Option<String> {
    let mut shape = String::new();
    let mut has_values = false;
    let mut rest = template;
    while let Some(at) = rest.find('<') {
        let (text, tail) = rest.split_at(at);
        shape.push_str(text);
        rest = if let Some(tail) = tail.strip_prefix("<<") {
            shape.push_str("<<");
            tail
        } else {
            let (_, tail) = tail.split_once('>')?;
            shape.push_str("<>");
            has_values = true;
            tail
        };
    }
    shape.push_str(rest);
    has_values.then_some(shape)
}

/// A lock as its user wrote it, to be compared with others.
#[derive(Clone, Debug)]
pub(crate) struct WrittenLock {
    pub(super) name: Arc<str>,
    pub(super) node: Node,
    pub(super) mode: Mode,
    pub(super) template: &'static str,
    pub(super) site: &'static Location<'static>,
}

impl WrittenLock {
    pub(crate) fn new(name: &Arc<str>, mode: Mode, origin: Origin) -> Self {
        Self {
            name: Arc::clone(name),
            node: Node::of(name, origin),
            mode,
            template: origin.template,
            site: origin.site,
        }
    }
}

/// One lock was waited for while another was held, as seen for the first time.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) held: WrittenLock,
    pub(super) wanted: WrittenLock,
    /// Both belong to one request, which takes them in the order of their names.
    pub(super) at_once: bool,
}

impl Edge {
    pub(super) fn new(held: &WrittenLock, wanted: &WrittenLock, at_once: bool) -> Self {
        Self {
            held: held.clone(),
            wanted: wanted.clone(),
            at_once,
        }
    }

    /// Whether the key that was waited for is greater than the one that was held.
    pub(super) fn rises(&self) -> bool {
        self.held.name < self.wanted.name
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An edge for waiting for `wanted` under `held`, both without a template.
    #[track_caller]
    pub(in crate::lock_order) fn edge(held: &str, wanted: &str) -> Edge {
        let origin = Origin {
            site: Location::caller(),
            template: "unnamed",
            shape: "",
        };
        let [held, wanted] =
            [held, wanted].map(|name| WrittenLock::new(&Arc::from(name), Mode::Write, origin));
        Edge::new(&held, &wanted, false)
    }

    #[test]
    fn the_shape_of_a_template() {
        for (template, shape) in [
            ("acct:<from>", Some("acct:<>")),
            ("<a>:<b.c>/d", Some("<>:<>/d")),
            ("a<<b:<c>", Some("a<<b:<>")),
            ("unnamed", None),
            ("a<<b>", None),
            ("a<b", None),
        ] {
            assert_eq!(shape_of(template).as_deref(), shape, "{template}");
        }
    }
}
