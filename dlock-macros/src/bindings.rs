//! The names that the arguments bind, and how they get into the body.
//!
//! The body is an async block of its own, and captures only the arguments that it mentions: the
//! others would be dropped after the lock is given back. So each name is bound again inside, which
//! also makes the compiler report the warnings for the user's code (`unused_mut` and similar).

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, FnArg, Pat, PatIdent, PatType, Receiver, ReceiverKind, Signature, Type,
    parse_quote_spanned,
};

use crate::mentions::Mentions;

/// What uses the arguments, in the body and elsewhere.
pub(crate) struct Uses {
    /// What the key, `permits` and `on_error` mention.
    pub(crate) elsewhere: Mentions,
    /// What the key or `permits` may consume before the body gets it.
    pub(crate) before: Mentions,
    pub(crate) by_body: Mentions,
}

/// Writes the statements that move the arguments into the body, and removes from the signature what
/// belongs only to the names inside.
pub(crate) fn move_in(signature: &mut Signature, uses: &Uses, unnamed: bool) -> TokenStream {
    let mut statements = TokenStream::new();
    for (index, argument) in signature.inputs.iter_mut().enumerate() {
        match argument {
            FnArg::Receiver(receiver) => statements.extend(move_receiver(receiver)),
            FnArg::Typed(argument) => {
                if unnamed && matches!(*argument.pat, Pat::Wild(_)) {
                    let name = format_ident!("__argument_{index}", span = Span::mixed_site());
                    *argument.pat = parse_quote_spanned!(Span::mixed_site()=> #name);
                }
                statements.extend(move_bindings(argument, uses));
            }
        }
    }
    statements
}

/// `self` cannot be bound again, but any use of the whole `self` captures it.
fn move_receiver(receiver: &Receiver) -> Option<TokenStream> {
    let owned = match &receiver.kind {
        ReceiverKind::Value => true,
        ReceiverKind::Typed(_, ty) => !matches!(**ty, Type::Reference(_)),
        _ => false,
    };
    let this = &receiver.self_token;
    owned.then(|| quote_spanned!(Span::mixed_site()=> let _ = &#this;))
}

fn move_bindings(argument: &mut PatType, uses: &Uses) -> TokenStream {
    let mut statements = TokenStream::new();
    let attributes: Vec<_> = argument
        .attrs
        .iter()
        .filter(|a| concerns_name(a))
        .cloned()
        .collect();
    visit(&mut argument.pat, |binding| {
        let name = &binding.ident;
        let plain = name.unraw().to_string();
        // If the key consumes the argument, nothing is left to move. Its tokens do not show whether
        // it does.
        if uses.before.contains(&plain) && !uses.by_body.contains(&plain) {
            return;
        }
        // The `mut` of a `ref mut` belongs to the reference, not to the name.
        let mutability = if binding.by_ref.is_none() {
            binding.mutability.take()
        } else {
            None
        };
        let quiet = quiet(&plain, &uses.elsewhere);
        statements.extend(quote_spanned! {Span::mixed_site()=>
            #(#attributes)*
            #quiet
            let #mutability #name = #name;
        });
    });
    if !statements.is_empty() {
        // The lint that `expect` names fires inside only.
        argument
            .attrs
            .retain(|attribute| !attribute.path().is_ident("expect"));
    }
    statements
}

/// Silences the lints about the statement, which the user has not written, and the warnings about an
/// unused name or value if the name is used elsewhere.
fn quiet(name: &str, elsewhere: &Mentions) -> TokenStream {
    let unused = elsewhere.contains(name).then(used_elsewhere);
    // Each needless `allow` is an error where the user forbids its lint.
    let underscore = name.starts_with('_').then(
        || quote!(#[allow(clippy::no_effect_underscore_binding, clippy::used_underscore_binding)]),
    );
    quote!(#unused #underscore #[allow(clippy::shadow_same)])
}

fn used_elsewhere() -> TokenStream {
    quote!(#[allow(unused_assignments, unused_variables)])
}

/// Marks each `let name = name;`, which macros write to move an argument into a future, as allowed
/// to be unused if the name is used elsewhere.
pub(crate) fn already_moved(block: Group, elsewhere: &Mentions) -> Group {
    marked(&block, elsewhere).unwrap_or(block)
}

/// The group with its moves marked. `None` if there are none, since a group that is built again
/// loses the positions of its two brackets.
fn marked(group: &Group, elsewhere: &Mentions) -> Option<Group> {
    let tokens: Vec<_> = group.stream().into_iter().collect();
    let mut output = TokenStream::new();
    let mut changed = false;
    for (index, token) in tokens.iter().enumerate() {
        if moves(&tokens[index..]).is_some_and(|name| elsewhere.contains(&name)) {
            output.extend(used_elsewhere());
            changed = true;
        }
        let inside = match token {
            TokenTree::Group(group) => marked(group, elsewhere),
            _ => None,
        };
        changed |= inside.is_some();
        output.extend([inside.map_or_else(|| token.clone(), TokenTree::Group)]);
    }
    let mut output = Group::new(group.delimiter(), output);
    output.set_span(group.span());
    changed.then_some(output)
}

/// The name that these tokens bind to itself, if they do that.
fn moves(tokens: &[TokenTree]) -> Option<String> {
    let [TokenTree::Ident(let_token), rest @ ..] = tokens else {
        return None;
    };
    let rest = match rest {
        [TokenTree::Ident(mutability), rest @ ..] if mutability == "mut" => rest,
        rest => rest,
    };
    let [
        TokenTree::Ident(name),
        TokenTree::Punct(equals),
        TokenTree::Ident(same),
        ..,
    ] = rest
    else {
        return None;
    };
    let is_move = let_token == "let" && equals.as_char() == '=' && name == same;
    is_move.then(|| name.unraw().to_string())
}

/// Attributes that affect whether a name exists and which warnings it gets.
fn concerns_name(attribute: &Attribute) -> bool {
    [
        "cfg", "cfg_attr", "allow", "expect", "warn", "deny", "forbid",
    ]
    .iter()
    .any(|name| attribute.path().is_ident(name))
}

/// Calls `with` on every name in the pattern, in order.
pub(crate) fn visit(pattern: &mut Pat, with: impl FnMut(&mut PatIdent)) {
    struct Names<F>(F);

    impl<F: FnMut(&mut PatIdent)> VisitMut for Names<F> {
        fn visit_pat_ident_mut(&mut self, pattern: &mut PatIdent) {
            (self.0)(pattern);
            visit_mut::visit_pat_ident_mut(self, pattern);
        }
    }

    Names(with).visit_pat_mut(pattern);
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn each_move_of_a_name_that_the_lock_uses_may_be_the_only_use() {
        let block = parse_quote!({
            let mut id = id;
            {
                let size = size;
                let name = name;
            }
        });
        let marked = already_moved(block, &Mentions::of(quote!(id, name)));
        let expected: Group = parse_quote!({
            #[allow(unused_assignments, unused_variables)]
            let mut id = id;
            {
                let size = size;
                #[allow(unused_assignments, unused_variables)]
                let name = name;
            }
        });
        assert_eq!(marked.to_string(), expected.to_string());
    }

    #[test]
    fn an_attribute_of_another_macro_stays_with_its_argument() {
        let mut signature: Signature = parse_quote! {
            async fn reserve(#[description = "what"] #[allow(unused_mut)] mut sku: String)
        };
        let uses = Uses {
            elsewhere: Mentions::default(),
            before: Mentions::default(),
            by_body: Mentions::of(quote!(sku)),
        };
        let moves = move_in(&mut signature, &uses, true).to_string();
        assert!(moves.contains("unused_mut"), "{moves}");
        assert!(!moves.contains("description"), "{moves}");
        let left = quote!(#signature).to_string();
        assert!(left.contains("description"), "{left}");
    }
}
