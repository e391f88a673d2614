//! The pages of the repository, and what of them can be checked. The build
//! script and the tests share this file.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// One Markdown file.
pub struct Page {
    /// From the root of the repository, with `/` between its parts.
    pub path: String,
    text: String,
}

/// Something on a page, and the line it begins on.
pub struct On<T> {
    pub line: usize,
    pub what: T,
}

/// A fenced block of code.
pub struct Block {
    /// The words behind the opening fence.
    pub info: Vec<String>,
    pub text: String,
}

impl Block {
    /// Its language, if it says one.
    pub fn language(&self) -> Option<&str> {
        self.info.first().map(String::as_str)
    }
}

/// A link or an image.
pub struct Link {
    pub text: String,
    pub target: String,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../..").canonicalize().expect("the repository")
}

/// Where pages are: files, and folders with all that is in them.
pub const PLACES: [&str; 11] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
    "examples",
    "benches",
    // The front pages of the other packages.
    "dlock-cli/README.md",
    "dlock-macros/README.md",
    "dlock-runtime/README.md",
    "tests/conformance/README.md",
];

/// Every page, by path.
pub fn pages() -> Vec<Page> {
    let root = root();
    let mut pages = Vec::new();
    for place in PLACES {
        collect(&root, &root.join(place), &mut pages);
    }
    pages.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(pages.len() > 5, "they are not where they are looked for");
    pages
}

fn collect(root: &Path, path: &Path, pages: &mut Vec<Page>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder that can be read") {
            collect(root, &entry.expect("an entry").path(), pages);
        }
    } else if path.extension().is_some_and(|extension| extension == "md") {
        let name = path.strip_prefix(root).expect("inside the repository");
        let parts: Vec<_> = name.iter().map(|part| part.to_string_lossy()).collect();
        pages.push(Page {
            path: parts.join("/"),
            text: fs::read_to_string(path).expect("a page in UTF-8"),
        });
    }
}

impl Page {
    pub fn blocks(&self) -> Vec<On<Block>> {
        let mut blocks = Vec::new();
        let mut open: Option<On<Block>> = None;
        for (event, place) in self.events() {
            match (event, &mut open) {
                (Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))), _) => {
                    let info = info.split([',', ' ']).filter(|word| !word.is_empty());
                    let block = Block {
                        info: info.map(str::to_owned).collect(),
                        text: String::new(),
                    };
                    open = Some(self.on(&place, block));
                }
                (Event::Text(text), Some(block)) => block.what.text.push_str(&text),
                (Event::End(TagEnd::CodeBlock), _) => blocks.extend(open.take()),
                _ => {}
            }
        }
        blocks
    }

    pub fn links(&self) -> Vec<On<Link>> {
        let mut links = Vec::new();
        let mut open: Option<On<Link>> = None;
        for (event, place) in self.events() {
            match (event, &mut open) {
                (Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }), _) => {
                    let link = Link {
                        text: String::new(),
                        target: dest_url.into_string(),
                    };
                    open = Some(self.on(&place, link));
                }
                (Event::Text(text) | Event::Code(text), Some(link)) => {
                    link.what.text.push_str(&text);
                }
                (Event::End(TagEnd::Link | TagEnd::Image), _) => links.extend(open.take()),
                _ => {}
            }
        }
        links
    }

    /// Code within the text, such as `cargo test`.
    pub fn codes(&self) -> Vec<On<String>> {
        let codes = self.events().filter_map(|(event, place)| match event {
            Event::Code(code) => Some(self.on(&place, code.into_string())),
            _ => None,
        });
        codes.collect()
    }

    /// What a link may name behind its `#`: the headings, as GitHub writes them.
    pub fn anchors(&self) -> Vec<String> {
        let mut anchors = Vec::new();
        let mut open: Option<String> = None;
        for (event, _) in self.events() {
            match (event, &mut open) {
                (Event::Start(Tag::Heading { .. }), _) => open = Some(String::new()),
                (Event::Text(text) | Event::Code(text), Some(heading)) => heading.push_str(&text),
                (Event::End(TagEnd::Heading(_)), _) => {
                    anchors.extend(open.take().as_deref().map(anchor));
                }
                _ => {}
            }
        }
        anchors
    }

    fn events(&self) -> impl Iterator<Item = (Event<'_>, Range<usize>)> {
        Parser::new_ext(&self.text, Options::ENABLE_TABLES).into_offset_iter()
    }

    fn on<T>(&self, place: &Range<usize>, what: T) -> On<T> {
        let before = &self.text[..place.start];
        On {
            line: before.matches('\n').count() + 1,
            what,
        }
    }
}

fn anchor(heading: &str) -> String {
    let heading = heading.to_lowercase().replace(' ', "-");
    let named = |c: &char| matches!(c, '-' | '_') || c.is_alphanumeric();
    heading.chars().filter(named).collect()
}
