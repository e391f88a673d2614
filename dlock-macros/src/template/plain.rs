//! Plain text in a template that was surely meant as a value. With such text, the lock has the same
//! name for every value of the argument.

use quote::ToTokens as _;
use syn::LitStr;

use super::{Template, scan};
use crate::mentions::Mentions;

/// Stands for a value in the text of a template. A key that has this character itself is refused
/// when it is used.
const VALUE: char = '\0';

/// What to tell the user about the first such text, if the function has arguments and there is one.
/// Braces without the name of an argument are text, since Redis Cluster reads them (`{cart}:<id>`),
/// but not if the template has no value at all.
pub(super) fn complaint(template: &Template, arguments: &[String]) -> Option<String> {
    let example = example(arguments)?;
    let text = text(template);
    let (sign, complaint) = text.char_indices().find_map(|(at, sign)| {
        let behind = &text[at + sign.len_utf8()..];
        let complaint = match sign {
            '{' => {
                let prefix = text[..at].chars().next_back();
                let prefix = prefix.filter(|prefix| matches!(prefix, '#' | '$'));
                let group = Group {
                    prefix: prefix.map(String::from).unwrap_or_default(),
                    inside: group(behind)?,
                };
                group.complaint(arguments, &example, template.values.is_empty())
            }
            '#' | '$' => named(sign, behind, arguments),
            '>' => unopened(&text[..at], behind, arguments),
            _ => None,
        };
        complaint.map(|complaint| (sign, complaint))
    })?;
    Some(format!(
        "{complaint}; if this very text is meant, {}",
        way_out(template, arguments, sign)
    ))
}

/// How to have the text as it is.
fn way_out(template: &Template, arguments: &[String], sign: char) -> String {
    let text = LitStr::new(&template.head, template.literal.span());
    let mentions = Mentions::of(text.to_token_stream());
    // Such a string is refused in an expression too.
    let refused = arguments
        .iter()
        .any(|name| mentions.lookalike(name).is_some());
    if refused || !template.values.is_empty() {
        format!("write `<\\\"{sign}\\\">` for its `{sign}`")
    } else {
        format!(
            "write it as an expression, `String::from({:?})`",
            template.head
        )
    }
}

/// Text in braces.
struct Group<'a> {
    /// The `#` or `$` before it, which some write.
    prefix: String,
    inside: &'a str,
}

impl Group<'_> {
    fn complaint(&self, arguments: &[String], example: &str, alone: bool) -> Option<String> {
        let Self { prefix, inside } = self;
        let shown = inside.replace(VALUE, "<…>");
        let shown = format!("braces are plain text in a key: `{prefix}{{{shown}}}`");
        if let Some(name) = words(inside).find(|word| is_one(word, arguments)) {
            let meant = self.meant(name);
            return Some(format!(
                "{shown} would name the same lock for every `{name}`; write `<{meant}>`"
            ));
        }
        let place = inside.split(':').next().unwrap_or_default().trim();
        if place.chars().all(|c| c.is_ascii_digit()) {
            return Some(format!(
                "{shown} stands for no argument; write its name, such as `<{example}>`"
            ));
        }
        let has_letters = inside.contains(|c: char| c.is_alphabetic() || c == '_');
        (alone && has_letters).then(|| {
            format!(
                "{shown} would name the same lock for every call; write the name of an argument, \
                 such as `<{example}>`"
            )
        })
    }

    /// The expression over the argument `name` that the braces surround, or just its name.
    fn meant(&self, name: &str) -> String {
        // A format spec (`{id:>8}`) is not allowed between `<` and `>`.
        let meant = self.inside.split(':').next().unwrap_or_default();
        let meant = meant.trim().trim_start_matches('&');
        let inner = meant.strip_prefix('(').and_then(|m| m.strip_suffix(')'));
        let meant = inner.filter(|m| !m.contains(['(', ')'])).unwrap_or(meant);
        let is_plain = meant
            .chars()
            .all(|c| is_of_word(c) || matches!(c, '.' | '(' | ')' | '[' | ']'));
        let is_whole = scan::expression(&format!("{meant}>")) == Ok(meant.len());
        if is_plain && is_whole && words(meant).next() == Some(name) {
            meant.replacen(name, &written(name), 1)
        } else {
            written(name)
        }
    }
}

/// Refuses `#name` and `$name`, as templates of other languages have them.
fn named(sign: char, behind: &str, arguments: &[String]) -> Option<String> {
    let end = |is_part: fn(char) -> bool| behind.find(|c| !is_part(c)).unwrap_or(behind.len());
    let name = &behind[..end(is_of_word)];
    if !is_one(name, arguments) {
        return None;
    }
    let path = behind[..end(|c| is_of_word(c) || c == '.')].trim_end_matches('.');
    let meant = path.replacen(name, &written(name), 1);
    Some(format!(
        "`{sign}` is plain text in a key: `{sign}{path}` would name the same lock for every \
         `{name}`; write `<{meant}>`"
    ))
}

/// Refuses a name whose `>` closes nothing, since its `<` is missing or doubled. `<<name>` alone is
/// text that somebody wanted.
fn unopened(before: &str, behind: &str, arguments: &[String]) -> Option<String> {
    let start = before.trim_end_matches(|c| is_of_word(c) || c == '.').len();
    let mut path = &before[start..];
    let name = loop {
        let name = words(path).next()?;
        if is_one(name, arguments) {
            break name;
        }
        path = path.split_once('.')?.1;
    };
    if path.ends_with('.') {
        return None;
    }
    let is_doubled = before[..before.len() - path.len()].ends_with('<');
    let (why, shown) = match (is_doubled, behind.starts_with('>')) {
        (true, false) => return None,
        (true, true) => ("`<<` is a plain `<`", format!("<<{path}>>")),
        (false, _) => ("a `>` without its `<` is plain text", format!("{path}>")),
    };
    let meant = path.replacen(name, &written(name), 1);
    Some(format!(
        "{why}: `{shown}` would name the same lock for every `{name}`; write `<{meant}>`"
    ))
}

/// The whole text, with [`VALUE`] for each value.
fn text(template: &Template) -> String {
    let mut text = template.head.clone();
    for (_, after) in &template.values {
        text.push(VALUE);
        text.push_str(after);
    }
    text
}

/// The text up to the brace that closes the group which begins here, if no other group begins
/// before.
fn group(behind: &str) -> Option<&str> {
    let (inside, brace) = behind.split_at(behind.find(['{', '}'])?);
    brace.starts_with('}').then_some(inside)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_of_word(c))
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_one(name: &str, arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == name)
}

/// What may stand in a template. `None` without arguments.
fn example(arguments: &[String]) -> Option<String> {
    match arguments.iter().find(|name| *name != "self") {
        Some(name) => Some(written(name)),
        None => (!arguments.is_empty()).then(|| "self.id".to_owned()),
    }
}

/// The name of an argument in Rust: `r#type`, since `type` is a keyword.
fn written(name: &str) -> String {
    if name == "self" || syn::parse_str::<syn::Ident>(name).is_ok() {
        name.to_owned()
    } else {
        format!("r#{name}")
    }
}
