//! Expressions as text, to name a lock whose key is an expression.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// How many characters of an expression are shown.
const LONGEST: usize = 80;

/// The expression on one short, readable line. It is built from the tokens and not copied from the
/// file, so that the spaces of a compiler version and the user's line breaks do not change a name
/// in a dashboard.
pub(crate) fn text(tokens: TokenStream) -> String {
    let mut line = Line::default();
    line.write(tokens);
    let text = line.text;
    match text.char_indices().nth(LONGEST) {
        Some(_) => text.chars().take(LONGEST - 1).chain(['…']).collect(),
        None => text,
    }
}

/// What was written last, as far as it matters for the next token.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Last {
    /// Nothing that needs a space after it.
    #[default]
    Tight,
    /// A name, a literal or a closed bracket: the end of an operand.
    Operand,
    /// An operator with a space on both sides, or a comma.
    Spaced,
}

/// Operators of more than one character, the longer ones first. Without the shifts, which might be
/// the brackets of a generic argument.
const JOINED: [&str; 13] = [
    "..=", "::", "..", "->", "=>", "==", "!=", "<=", ">=", "&&", "||", "+=", "-=",
];

#[derive(Default)]
struct Line {
    text: String,
    last: Last,
    /// Whether the line is inside the arguments of a closure.
    in_bars: bool,
}

impl Line {
    fn write(&mut self, tokens: TokenStream) {
        let mut operators = String::new();
        for token in tokens {
            if let TokenTree::Punct(punct) = &token {
                operators.push(punct.as_char());
                if punct.spacing() == Spacing::Joint {
                    continue;
                }
            }
            self.operators(&operators);
            operators.clear();
            match token {
                TokenTree::Group(group) => self.group(group.delimiter(), group.stream()),
                TokenTree::Ident(name) => self.word(&name.to_string()),
                TokenTree::Literal(literal) => self.word(&literal.to_string()),
                TokenTree::Punct(_) => {}
            }
        }
    }

    fn word(&mut self, word: &str) {
        if self.last != Last::Tight {
            self.text.push(' ');
        }
        self.text.push_str(word);
        self.last = Last::Operand;
    }

    fn group(&mut self, delimiter: Delimiter, inside: TokenStream) {
        let (open, close) = match delimiter {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::Brace => ("{ ", " }"),
            Delimiter::None => return self.write(inside),
        };
        let calls = delimiter != Delimiter::Brace && self.last == Last::Operand;
        if self.last != Last::Tight && !calls {
            self.text.push(' ');
        }
        self.text.push_str(open);
        self.last = Last::Tight;
        self.write(inside);
        self.text.push_str(close);
        self.last = Last::Operand;
    }

    fn operators(&mut self, mut joined: &str) {
        while let Some(first) = joined.chars().next() {
            let known = JOINED.iter().find(|known| joined.starts_with(**known));
            let (operator, rest) = joined.split_at(known.map_or(first.len_utf8(), |o| o.len()));
            self.operator(operator);
            joined = rest;
        }
    }

    fn operator(&mut self, operator: &str) {
        let after_operand = self.last == Last::Operand;
        let (space, last) = match operator {
            "," | ";" | ":" => (false, Last::Spaced),
            "|" if self.in_bars => (false, Last::Spaced),
            // It ends an operand, which a call may follow.
            "?" => (false, Last::Operand),
            "." | "::" | "!" | ".." | "..=" | "<" | ">" | "'" => {
                (self.last == Last::Spaced, Last::Tight)
            }
            _ if after_operand => (true, Last::Spaced),
            // Before an operand, `&`, `*`, `-` and `|` belong to it.
            _ => (self.last == Last::Spaced, Last::Tight),
        };
        self.in_bars = operator == "|" && last == Last::Tight || self.in_bars && operator != "|";
        if space {
            self.text.push(' ');
        }
        self.text.push_str(operator);
        self.last = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tidied(source: &str) -> String {
        text(source.parse().expect(source))
    }

    #[test]
    fn it_reads_as_one_would_write_it() {
        for source in [
            "account_key(id)",
            "self.key()",
            "keys::of(&order, \"a b\")?",
            "(a, b).0",
            "format!(\"acct:{id}\")",
            "[first, second.as_str()]",
            "ids.get::<u32>(0).map(Key::from)",
            "a + b * -c",
            "&names[1..]",
            "ids.iter().map(|id: &u32| key(id))",
            "Key { shop: self.shop, id }",
        ] {
            assert_eq!(tidied(source), source);
        }
    }

    #[test]
    fn the_spaces_of_the_file_make_no_difference() {
        assert_eq!(
            tidied("account_key (\n    id ,other\n)\n  . await"),
            "account_key(id, other).await"
        );
    }

    #[test]
    fn what_is_long_is_cut() {
        let long = tidied(&format!("account_key(\"{}\")", "é".repeat(100)));
        assert_eq!(long.chars().count(), LONGEST);
        assert!(
            long.starts_with("account_key(\"éé") && long.ends_with("é…"),
            "{long}"
        );
        let fits = "a".repeat(LONGEST);
        assert_eq!(tidied(&fits), fits);
    }
}
