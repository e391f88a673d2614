//! What an expression mentions, as far as its tokens show.

use proc_macro2::{TokenStream, TokenTree};
use syn::LitStr;
use syn::ext::IdentExt as _;

/// The names and strings in some tokens.
#[derive(Default)]
pub(crate) struct Mentions {
    names: Vec<String>,
    /// Strings in the arguments of a macro, which may be format strings.
    formats: Vec<LitStr>,
    /// All other strings.
    strings: Vec<LitStr>,
}

impl Mentions {
    pub(crate) fn of(tokens: TokenStream) -> Self {
        let mut mentions = Self::default();
        mentions.add(tokens);
        mentions
    }

    pub(crate) fn add(&mut self, tokens: TokenStream) {
        self.walk(tokens, false);
    }

    /// Whether `name` is used, in code or in a format string.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names.iter().any(|mentioned| mentioned == name)
            || self.formats.iter().any(|text| holds(text, '{', name))
    }

    /// A string that contains `name` as a template or a format string would, but is neither.
    pub(crate) fn lookalike(&self, name: &str) -> Option<&LitStr> {
        let in_angles = self
            .formats
            .iter()
            .chain(&self.strings)
            .find(|text| holds(text, '<', name));
        in_angles.or_else(|| self.strings.iter().find(|text| holds(text, '{', name)))
    }

    fn walk(&mut self, tokens: TokenStream, in_macro: bool) {
        let mut after_bang = false;
        for token in tokens {
            let bang = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '!');
            match token {
                TokenTree::Group(group) => self.walk(group.stream(), in_macro || after_bang),
                TokenTree::Ident(ident) => self.names.push(ident.unraw().to_string()),
                TokenTree::Literal(literal) => {
                    if let Ok(text) = syn::parse2(TokenTree::from(literal).into()) {
                        let kind = if in_macro {
                            &mut self.formats
                        } else {
                            &mut self.strings
                        };
                        kind.push(text);
                    }
                }
                TokenTree::Punct(_) => {}
            }
            after_bang = bang;
        }
    }
}

/// Whether `name`, and not only the start of a longer name, follows an opening bracket.
fn holds(text: &LitStr, bracket: char, name: &str) -> bool {
    text.value().split(bracket).skip(1).any(|inside| {
        let tail = inside
            .strip_prefix(name)
            .and_then(|tail| tail.chars().next());
        tail.is_some_and(|next| !next.is_alphanumeric() && next != '_')
    })
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn the_start_of_a_longer_name_is_not_the_name() {
        let mentions = Mentions::of(parse_quote!(format!("{skus} {sku_2}"), "<skus>{sku_}"));
        assert!(!mentions.contains("sku"));
        assert!(mentions.lookalike("sku").is_none());

        let mentions = Mentions::of(parse_quote!(format!("{sku:?}"), "<quantity.0>"));
        assert!(mentions.contains("sku"));
        assert!(mentions.lookalike("quantity").is_some());
    }
}
