//! Which keys a template makes.

/// The literal text of a template, between the values that it puts in.
#[derive(Debug)]
struct Template(Vec<String>);

impl Template {
    /// Reads a template as it is written: each `<…>` is an expression, which may contain `<…>`
    /// itself, and `<<` stands for `<`.
    fn parse(template: &str) -> Self {
        let (mut literals, mut literal) = (Vec::new(), String::new());
        let mut depth = 0_usize;
        let mut letters = template.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '<' if depth == 0 && letters.next_if_eq(&'<').is_some() => literal.push('<'),
                '<' => {
                    if depth == 0 {
                        literals.push(std::mem::take(&mut literal));
                    }
                    depth += 1;
                }
                '>' if depth > 0 => depth -= 1,
                letter if depth == 0 => literal.push(letter),
                _ => {}
            }
        }
        literals.push(literal);
        Self(literals)
    }

    /// Whether it makes one key only.
    fn is_one_key(&self) -> bool {
        self.0.len() == 1
    }

    /// How many bytes of it are literal text.
    fn length(&self) -> usize {
        self.0.iter().map(String::len).sum()
    }

    /// Whether it may have made this key.
    fn makes(&self, key: &str) -> bool {
        let [first, between @ .., last] = &self.0[..] else {
            return self.0.first().is_some_and(|literal| literal == key);
        };
        let Some(mut rest) = key.strip_prefix(&**first) else {
            return false;
        };
        for literal in between {
            match rest.split_once(&**literal) {
                Some((_, behind)) => rest = behind,
                None => return false,
            }
        }
        rest.ends_with(&**last)
    }
}

/// The template that has made a key, and whether it makes no other key. Of several that may have
/// made the key, it is the one with the most literal text. If two have as much, the answer is
/// `None`.
pub(crate) fn template_of<'a>(
    key: &str,
    templates: impl Iterator<Item = &'a String>,
) -> Option<(&'a str, bool)> {
    let mut found: Vec<_> = templates
        .map(|name| (name, Template::parse(name)))
        .filter(|(_, template)| template.makes(key) && (template.length() > 0 || key.is_empty()))
        .collect();
    found.sort_by_key(|(_, template)| std::cmp::Reverse(template.length()));
    match &found[..] {
        [(_, one), (_, other), ..] if one.length() == other.length() => None,
        [(name, template), ..] => Some((name, template.is_one_key())),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_makes_its_keys() {
        for (template, key, makes) in [
            ("nightly", "nightly", true),
            ("nightly", "nightly2", false),
            ("stock:<sku>", "stock:42", true),
            ("stock:<sku>", "order:42", false),
            ("a:<x>:b:<y.z()>:c", "a:1:b:2:c", true),
            ("a:<x>:b:<y>:c", "a:1:2:c", false),
            ("a:<x::<u8>()>:c", "a:1:c", true),
            ("a<<b", "a<b", true),
            ("", "", true),
            ("", "k", false),
        ] {
            let read = Template::parse(template);
            assert_eq!(read.makes(key), makes, "{template} {key}");
            assert_eq!(read.is_one_key(), !template.contains(":<"), "{template}");
        }
    }

    #[test]
    fn the_template_of_a_key_is_the_closest() {
        let names = ["a:<x>", "a:b:<x>", "a:c", "<x>", "b:<x>:c", "b:<y>:c"].map(ToOwned::to_owned);
        for (key, template) in [
            ("a:1", Some(("a:<x>", false))),
            ("a:b:1", Some(("a:b:<x>", false))),
            ("a:c", Some(("a:c", true))),
            ("b:1:c", None),
            ("z", None),
        ] {
            let found = template_of(key, names.iter());
            assert_eq!(found, template, "{key}");
        }
    }
}
