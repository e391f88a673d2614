//! Which names a lock may have.

use crate::error::LockError;
use crate::key::{LockKey, MAX_KEY_BYTES, Shown};
use crate::options::Shapes;

/// Refuses a key with a name that no store could keep apart or show.
pub(crate) fn check_key(key: &LockKey, namespace: &str, max_bytes: usize) -> Result<(), LockError> {
    for name in key.names() {
        if name.is_empty() {
            return Err(LockError::InvalidKey {
                key: String::new(),
                reason: "it is empty; give the lock a name".to_owned(),
            });
        }
        check_prefix(name, namespace, max_bytes)?;
    }
    Ok(())
}

/// Refuses a constant that reads as a template over the arguments of the function: it is plain
/// text, and would be the same lock for all of them.
pub(crate) fn check_constants(key: &LockKey, shapes: Shapes) -> Result<(), LockError> {
    let Shapes::Known(parts) = shapes else {
        return Ok(());
    };
    for (index, name) in key.names().enumerate() {
        // One constant may make several names.
        let Some(part) = parts.get(index).or(parts.last()) else {
            continue;
        };
        for argument in part.arguments {
            let Some(value) = value_over(argument, name) else {
                continue;
            };
            let value = Shown(value);
            return Err(LockError::InvalidKey {
                key: Shown(name).to_string(),
                reason: format!(
                    "it contains `{value}` as text, and is the same for every `{argument}`, since \
                     only a literal in the attribute is a template; write `key = \"…{value}…\"` \
                     there"
                ),
            });
        }
    }
    Ok(())
}

/// What stands in the name as a template has an expression that begins with the argument.
fn value_over<'a>(argument: &str, name: &'a str) -> Option<&'a str> {
    name.match_indices('<').find_map(|(at, _)| {
        let behind = name[at + 1..].strip_prefix(argument)?;
        let is_longer = behind.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        let value = name[at..].split_inclusive('>').next()?;
        (!is_longer && value.ends_with('>')).then_some(value)
    })
}

/// Refuses text that no name begins with.
pub(crate) fn check_prefix(text: &str, namespace: &str, max_bytes: usize) -> Result<(), LockError> {
    let length = namespaced_length(namespace, text);
    let most = max_bytes.min(MAX_KEY_BYTES);
    // A text that is too long is not searched for control characters.
    let reason = if length > most {
        format!(
            "it is {length} bytes long with its namespace, and at most {most} are allowed; use a \
             shorter name or a hash of the long part"
        )
    } else if let Some(control) = text.chars().find(|c| c.is_control()) {
        format!("it holds the control character {control:?}; leave it out or encode it")
    } else {
        return Ok(());
    };
    Err(LockError::InvalidKey {
        key: Shown(text).to_string(),
        reason,
    })
}

fn namespaced_length(namespace: &str, name: &str) -> usize {
    match namespace.len() {
        0 => name.len(),
        length => length + 1 + name.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Part;

    #[test]
    fn bad_keys_say_what_to_do() {
        let reason = |key: LockKey| match check_key(&key, "", MAX_KEY_BYTES) {
            Err(LockError::InvalidKey { reason, .. }) => reason,
            other => panic!("expected InvalidKey, got {other:?}"),
        };
        assert!(reason("".into()).contains("empty"));
        assert!(reason(Vec::<String>::new().into()).contains("empty"));
        assert!(reason("a\nb".into()).contains("control"));
        assert!(reason("\n".repeat(1 << 20).into()).contains("bytes"));
        assert!(reason("x".repeat(513).into()).contains("513 bytes"));
        let longest = LockKey::from("x".repeat(512));
        assert!(check_key(&longest, "", MAX_KEY_BYTES).is_ok());
        assert!(check_key(&longest, "ns", MAX_KEY_BYTES).is_err());
    }

    #[test]
    fn a_constant_that_reads_as_a_template_is_refused() {
        const ARGUMENTS: &[&str] = &["day", "self"];
        const PARTS: &[Part] = &[part(&[]), part(ARGUMENTS)];
        let refused = |names: &[&str]| check_constants(&names.into(), Shapes::Known(PARTS)).err();
        for (text, value) in [
            ("a:<day>", "<day>"),
            ("<day.name()>:b", "<day.name()>"),
            ("<days>:<self.day>", "<self.day>"),
        ] {
            let error = refused(&["a", text]).expect(text).to_string();
            assert!(error.contains(&format!("contains `{value}`")), "{error}");
            assert!(refused(&["a", "b", text]).is_some(), "{text}");
            assert!(refused(&[text, "a"]).is_none(), "{text}");
            assert!(check_constants(&text.into(), Shapes::Keys).is_ok());
        }
        for text in ["a", "<days>", "<day", "day>", "<today>", "{day}", ""] {
            assert!(refused(&["a", text]).is_none(), "{text}");
        }
    }

    const fn part(arguments: &'static [&'static str]) -> Part {
        Part {
            template: "a",
            shape: "",
            arguments,
        }
    }
}
