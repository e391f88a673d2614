//! Whether a server keeps every token that it has confirmed, according to its settings. Each new
//! connection asks again: a server may have been restarted with other settings, or another server
//! may have taken its place.
//!
//! Redis syncs its append-only file before it answers if `appendfsync` is `always`; but not while
//! it writes a snapshot or a new file, if `no-appendfsync-on-rewrite` is set
//! (`flushAppendOnlyFile` in its `aof.c`). A policy of `allkeys-…` may evict the token counter
//! itself. And a replica may be promoted without the last tokens, whatever its settings.

use std::collections::HashMap;

use redis::{Cmd, Value};

use super::commands;

/// What makes the tokens of a single server strict, for messages.
pub(super) const STRICT_WITH: &str = "`appendonly yes`, `appendfsync always` and \
    `no-appendfsync-on-rewrite no` (and let dlock's user read them, with `CONFIG GET` and \
    `ROLE`), have no replica, and let no `maxmemory-policy` evict keys without a ttl";

/// The questions. They use patterns, since only Redis 7 accepts several names in one question.
pub(super) fn questions() -> [Cmd; 3] {
    [
        commands::setting("*append*"),
        commands::setting("maxmemory*"),
        commands::role(),
    ]
}

/// Whether tokens are strict, by the answers. A missing or refused one counts against the server.
pub(super) fn is_strict(answers: Vec<Value>) -> bool {
    let strict = <[Value; 3]>::try_from(answers)
        .ok()
        .and_then(|[files, memory, role]| {
            let files = settings(files)?;
            let memory = settings(memory)?;
            let is = |found: &HashMap<String, String>, name: &str, value: &str| {
                found.get(name).is_some_and(|found| found == value)
            };
            let synced = is(&files, "appendonly", "yes")
                && is(&files, "appendfsync", "always")
                && is(&files, "no-appendfsync-on-rewrite", "no");
            let kept = is(&memory, "maxmemory", "0")
                || !memory.get("maxmemory-policy")?.starts_with("allkeys");
            // A master without replicas.
            let alone = self::role(&role)? == (b"master", Some(0));
            Some(synced && kept && alone)
        });
    strict.unwrap_or(false)
}

/// The settings in an answer to `CONFIG GET`.
pub(super) fn settings(answer: Value) -> Option<HashMap<String, String>> {
    redis::from_redis_value(answer).ok()
}

/// The role in an answer to `ROLE`, and for a master the number of its replicas.
pub(super) fn role(answer: &Value) -> Option<(&[u8], Option<usize>)> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let replicas = match parts.get(2) {
        Some(Value::Array(replicas)) => Some(replicas.len()),
        _ => None,
    };
    match parts.first() {
        Some(Value::BulkString(role)) => Some((role, replicas)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, RedisError, ServerError};

    use super::*;

    fn map(found: &[(&str, &str)]) -> Value {
        let text = |text: &str| Value::BulkString(text.into());
        let found = found.iter().map(|(name, value)| (text(name), text(value)));
        Value::Map(found.collect())
    }

    fn role(name: &str, replicas: Vec<Value>) -> Value {
        let name = Value::BulkString(name.into());
        Value::Array(vec![name, Value::Int(0), Value::Array(replicas)])
    }

    fn strict() -> Vec<Value> {
        vec![
            map(&[
                ("appendonly", "yes"),
                ("appendfsync", "always"),
                ("no-appendfsync-on-rewrite", "no"),
            ]),
            map(&[("maxmemory", "1"), ("maxmemory-policy", "volatile-lru")]),
            role("master", Vec::new()),
        ]
    }

    #[test]
    fn whatever_is_not_known_to_be_kept_is_best_effort() {
        assert!(is_strict(strict()));
        let refused = RedisError::from((ErrorKind::Extension, "NOPERM", "no".to_owned()));
        let refused = ServerError::try_from(refused).map_or(Value::Nil, Value::ServerError);
        for (index, answers) in [
            vec![
                map(&[("appendonly", "yes"), ("appendfsync", "always")]),
                map(&[
                    ("appendonly", "yes"),
                    ("appendfsync", "always"),
                    ("no-appendfsync-on-rewrite", "yes"),
                ]),
                map(&[
                    ("appendonly", "yes"),
                    ("appendfsync", "everysec"),
                    ("no-appendfsync-on-rewrite", "no"),
                ]),
                map(&[
                    ("appendonly", "no"),
                    ("appendfsync", "always"),
                    ("no-appendfsync-on-rewrite", "no"),
                ]),
            ],
            vec![
                map(&[]),
                map(&[("maxmemory", "1"), ("maxmemory-policy", "allkeys-lru")]),
            ],
            vec![
                role("slave", Vec::new()),
                role("master", vec![Value::Array(Vec::new())]),
            ],
        ]
        .into_iter()
        .enumerate()
        {
            for answer in answers.into_iter().chain([Value::Nil, refused.clone()]) {
                let mut all = strict();
                all[index] = answer.clone();
                assert!(!is_strict(all), "{answer:?}");
            }
        }
        assert!(!is_strict(Vec::new()));
    }
}
