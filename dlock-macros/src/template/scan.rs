//! Finds the `>` that ends an expression in a template.
//!
//! Written by hand, since the compiler's own lexer ends the compilation, with an error without a
//! position, when it is given half a string or an unmatched bracket. That lexer can read everything
//! that this scanner accepts.

/// Why a template's expression cannot be extracted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScanError {
    Empty,
    Unclosed,
    ClosesNothing(char),
    Foreign(char),
}

impl ScanError {
    /// The message for the user about the expression at the start of `text`.
    pub(super) fn message(&self, text: &str) -> String {
        match self {
            Self::Empty => "`<>` is empty; name what tells the locks apart, or write `<<` for a \
                            plain `<`"
                .to_owned(),
            Self::Unclosed => format!(
                "`<{text}` is not closed: a `>` is missing; for a plain `<` write `<<`, and \
                 put a comparison in parentheses"
            ),
            Self::ClosesNothing(bracket) => {
                format!("in `<{text}`, the `{bracket}` closes nothing")
            }
            Self::Foreign(character) => {
                format!("in `<{text}`, the `{character}` has no place in an expression")
            }
        }
    }
}

/// The length in bytes of the expression at the start of `text`, up to its `>`.
pub(super) fn expression(text: &str) -> Result<usize, ScanError> {
    let mut scan = Scan {
        text,
        at: 0,
        open: Vec::new(),
    };
    scan.run()?;
    if text[..scan.at].trim().is_empty() {
        return Err(ScanError::Empty);
    }
    Ok(scan.at)
}

/// What was surely meant as the expression at the start of `text`, if the `>` after `length` bytes,
/// which ends it, is an operator: it has a space before it, and another `>` behind it.
pub(super) fn operator(text: &str, length: usize) -> Option<&str> {
    if !text[..length].ends_with(char::is_whitespace) {
        return None;
    }
    let behind = text[length..].trim_start_matches(['>', '=']);
    let start = text.len() - behind.len();
    let operand = behind.split('<').next()?;
    let (end, _) = operand
        .match_indices('>')
        .find(|(at, _)| !operand[..*at].ends_with(['-', '=']))?;
    let meant = text[..start + end].trim();
    (!operand[..end].trim().is_empty()).then_some(meant)
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
    /// The closing brackets that are still expected, the innermost last.
    open: Vec<char>,
}

impl Scan<'_> {
    /// Moves to the `>` that ends the expression.
    fn run(&mut self) -> Result<(), ScanError> {
        while let Some(character) = self.rest().chars().next() {
            match character {
                '(' => self.open.push(')'),
                '[' => self.open.push(']'),
                '{' => self.open.push('}'),
                ')' | ']' | '}' => {
                    if self.open.pop() != Some(character) {
                        return Err(ScanError::ClosesNothing(character));
                    }
                }
                '<' if self.opens_generics() => self.open.push('>'),
                '>' if self.is_arrow() => {}
                '>' => match self.open.last() {
                    None => return Ok(()),
                    Some('>') => {
                        self.open.pop();
                    }
                    // A comparison inside other brackets.
                    Some(_) => {}
                },
                '"' => {
                    self.skip_string()?;
                    continue;
                }
                '\'' => {
                    self.skip_quoted()?;
                    continue;
                }
                _ if is_rust(character) => {}
                _ => return Err(ScanError::Foreign(character)),
            }
            self.at += character.len_utf8();
        }
        Err(ScanError::Unclosed)
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn before(&self) -> &str {
        &self.text[..self.at]
    }

    /// Whether this `<` opens generics: `::<…>`, `<…>` inside it, or the `<T as Trait>` at the
    /// start of a path. Every other `<` is a comparison.
    fn opens_generics(&self) -> bool {
        let before = self.before().trim_end();
        before.ends_with("::") || before.is_empty() || self.open.last() == Some(&'>')
    }

    fn is_arrow(&self) -> bool {
        self.before().ends_with(['-', '='])
    }

    /// Moves past the string that begins here, a raw one if an `r` stands before it.
    fn skip_string(&mut self) -> Result<(), ScanError> {
        let before = self.before();
        let prefix = before.trim_end_matches('#');
        let hashes = before.len() - prefix.len();
        let raw = prefix.strip_suffix('r').is_some_and(|before| {
            let before = before.strip_suffix(['b', 'c']).unwrap_or(before);
            !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
        });
        let content = &self.rest()[1..];
        let length = if raw {
            let end = format!("\"{}", "#".repeat(hashes));
            content.find(&end).map(|at| at + end.len())
        } else {
            closing_quote(content, '"')
        };
        self.at += 1 + length.ok_or(ScanError::Unclosed)?;
        Ok(())
    }

    /// Moves past the character that begins here, or the tick of a lifetime.
    fn skip_quoted(&mut self) -> Result<(), ScanError> {
        let content = &self.rest()[1..];
        let mut characters = content.chars();
        let length = match (characters.next(), characters.next()) {
            (Some('\\'), _) => closing_quote(content, '\'').ok_or(ScanError::Unclosed)?,
            (Some(character), Some('\'')) => character.len_utf8() + 1,
            (Some(character), _) if character.is_alphabetic() || character == '_' => 0,
            _ => return Err(ScanError::Foreign('\'')),
        };
        self.at += 1 + length;
        Ok(())
    }
}

/// Where the text after the next unescaped `quote` begins.
fn closing_quote(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Whether the compiler's lexer accepts the character outside quotes.
fn is_rust(character: char) -> bool {
    character.is_alphanumeric()
        || character.is_whitespace()
        || (character.is_ascii_punctuation() && !matches!(character, '\\' | '`'))
}
