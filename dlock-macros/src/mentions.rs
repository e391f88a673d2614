//! What an expression mentions, as far as its tokens show.

use proc_macro2::{Ident, Spacing, TokenStream, TokenTree};
use syn::LitStr;
use syn::ext::IdentExt as _;

/// The names and strings in some tokens.
#[derive(Default)]
pub(crate) struct Mentions {
    names: Vec<String>,
    /// Strings in the arguments of a macro that may format them.
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
        let mut formats = true;
        let mut dots = 0;
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            let is = |mark| matches!(&token, TokenTree::Punct(punct) if punct.as_char() == mark);
            let (bang, dot) = (is('!'), is('.'));
            match token {
                TokenTree::Group(group) => {
                    self.walk(group.stream(), in_macro || (after_bang && formats));
                }
                TokenTree::Ident(ident) => {
                    formats = !is_plain_macro(&ident);
                    // `.name` is a field or a method, and `name::` a module or a type.
                    if dots != 1 && !tokens.peek().is_some_and(begins_path) {
                        self.names.push(ident.unraw().to_string());
                    }
                }
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
            dots = if dot { dots + 1 } else { 0 };
        }
    }
}

/// Whether this is the first half of `::`. The colon of a type stands alone.
fn begins_path(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct)
        if punct.as_char() == ':' && punct.spacing() == Spacing::Joint)
}

/// Whether the macro of this name leaves the strings that it is given as they are.
fn is_plain_macro(name: &Ident) -> bool {
    const PLAIN: [&str; 7] = [
        "vec",
        "concat",
        "concatcp",
        "stringify",
        "env",
        "option_env",
        "include_str",
    ];
    PLAIN.iter().any(|plain| name == plain)
}

/// Whether `name`, and not only the start of a longer name, follows an opening bracket.
pub(crate) fn holds(text: &LitStr, bracket: char, name: &str) -> bool {
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

    #[test]
    fn a_field_or_a_path_of_the_same_name_is_no_use() {
        let other: TokenStream = parse_quote!(user.id + self.id() + id::new() + 1..2);
        assert!(!Mentions::of(other).contains("id"));
        for used in [
            parse_quote!(user.name == id.name()),
            parse_quote!(..id),
            parse_quote!(0..id),
            parse_quote!(0..=id),
            parse_quote!(Order { id: id }),
            parse_quote!(|id: ::std::string::String| ()),
            parse_quote!(id as u32),
        ] {
            let used: TokenStream = used;
            assert!(Mentions::of(used.clone()).contains("id"), "{used}");
        }
    }

    #[test]
    fn a_string_is_a_use_only_where_it_may_be_formatted() {
        for plain in [
            parse_quote!(vec!["a:{from}"]),
            parse_quote!(vec![vec!["a:{from}"]]),
            parse_quote!(std::concat!(env!("{from}"), "a:{from}")),
            parse_quote!(vec!["a", ("{from}")]),
        ] {
            let mentions = Mentions::of(plain);
            assert!(!mentions.contains("from"));
            assert!(mentions.lookalike("from").is_some());
        }
        for formatted in [
            parse_quote!(vec![format!("a:{from}")]),
            parse_quote!(format!(concat!("a:", "{from}"), from = 1)),
            parse_quote!(vec![1], format!("a:{from}")),
            parse_quote!(own!["a:{from}"]),
        ] {
            let mentions = Mentions::of(formatted);
            assert!(mentions.contains("from"));
            assert!(mentions.lookalike("from").is_none());
        }
    }
}
