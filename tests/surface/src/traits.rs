//! What each public type is besides what its own `impl`s say: the traits that it derives, and
//! those that it has by itself, such as `Send`. A field of another type may take one away, and no
//! line of the type's own source would show that.

use std::collections::{BTreeMap, BTreeSet};

/// Those that only the compiler knows, and that it may rename.
const UNSTABLE: [&str; 3] = ["Freeze", "StructuralPartialEq", "UnsafeUnpin"];

/// A line for each type. `all` are the items with derived and automatic traits, and `shown` are
/// those without.
pub(crate) fn of_each_type(all: &str, shown: &str) -> Vec<String> {
    let shown: BTreeSet<_> = shown.lines().collect();
    let mut traits = BTreeMap::<String, BTreeSet<String>>::new();
    for line in all.lines().filter(|line| !shown.contains(line)) {
        let Some((has, of)) = implemented(line) else {
            continue;
        };
        if !UNSTABLE.iter().any(|trait_| has.ends_with(trait_)) {
            traits.entry(of).or_default().insert(has);
        }
    }
    let line = |(of, has): (String, BTreeSet<String>)| {
        let has: Vec<_> = has.into_iter().collect();
        format!("{of}: {}", has.join(", "))
    };
    traits.into_iter().map(line).collect()
}

/// The trait of `impl<…> a::Trait for b::Type where …`, without its path, and the rest.
fn implemented(line: &str) -> Option<(String, String)> {
    let line = line.strip_prefix("impl")?;
    let (generics, line) = match line.strip_prefix('<') {
        Some(rest) => {
            let end = end_of_generics(rest)?;
            (format!("<{}> ", &rest[..end]), &rest[end + 1..])
        }
        None => (String::new(), line),
    };
    let (has, of) = line.trim_start().split_once(" for ")?;
    let (not, path) = match has.strip_prefix('!') {
        Some(path) => ("!", path),
        None => ("", has),
    };
    let path = path.split('<').next()?;
    let name = path.rsplit("::").next()?;
    Some((format!("{not}{name}"), format!("{generics}{of}")))
}

/// Where the `<` before `text` is closed; a `->` closes nothing.
fn end_of_generics(text: &str) -> Option<usize> {
    let mut depth = 1;
    let mut before = ' ';
    for (at, sign) in text.char_indices() {
        match sign {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
        before = sign;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::of_each_type;

    #[test]
    fn each_type_is_shown_with_what_it_derives_and_is() {
        let shown = "pub struct a::Guard\nimpl core::ops::drop::Drop for a::Guard";
        let all = "pub struct a::Guard\n\
            impl core::ops::drop::Drop for a::Guard\n\
            impl core::fmt::Debug for a::Guard\n\
            pub fn a::Guard::fmt(&self)\n\
            impl !core::panic::unwind_safe::UnwindSafe for a::Guard\n\
            impl core::marker::Freeze for a::Guard\n\
            impl core::marker::Send for a::Guard\n\
            impl<F: Fn() -> u8> core::marker::Send for a::Run<F> where F: core::marker::Send";
        let each = of_each_type(all, shown);
        assert_eq!(
            each,
            [
                "<F: Fn() -> u8> a::Run<F> where F: core::marker::Send: Send",
                "a::Guard: !UnwindSafe, Debug, Send",
            ]
        );
    }
}
