//! Which names a lock may have.

use crate::error::LockError;
use crate::key::{LockKey, MAX_KEY_BYTES, Shown};

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
}
