//! Configuration from environment variables.

use std::ffi::OsString;

use super::Config;
use crate::duration::parse_duration;
use crate::error::LockError;

pub(super) fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Config, LockError> {
    let text = |name: &str| match variable(name) {
        None => Ok(None),
        Some(value) => match value.into_string() {
            Ok(value) if value.is_empty() => Ok(None),
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(LockError::config(name, "not UTF-8")),
        },
    };
    let duration = |name: &str| match text(name)? {
        None => Ok(None),
        Some(value) => parse_duration(&value)
            .map(Some)
            .map_err(|reason| LockError::config(name, reason)),
    };
    let switch = |name: &str| match text(name)?.as_deref() {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(value) => Err(LockError::config(
            name,
            format!("{value:?} is neither true nor false"),
        )),
    };
    let Some(url) = text("DLOCK_URL")? else {
        return Err(LockError::config(
            "DLOCK_URL",
            "not set; name the store, for example redis://127.0.0.1:6379, or memory: for locks \
             of this process only",
        ));
    };
    let mut config = Config::from_setting("DLOCK_URL", &url)?;
    if let Some(namespace) = text("DLOCK_NAMESPACE")? {
        config = config.namespace(namespace);
    }
    if let Some(ttl) = duration("DLOCK_TTL")? {
        config = config.ttl(ttl);
    }
    if let Some(timeout) = duration("DLOCK_TIMEOUT")? {
        config = config.timeout(timeout);
    }
    if let Some(timeout) = duration("DLOCK_REQUEST_TIMEOUT")? {
        config = config.request_timeout(timeout);
    }
    if let Some(detect) = switch("DLOCK_DETECT_LOCK_ORDER")? {
        config = config.detect_lock_order(detect);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<Config, LockError> {
        read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn a_missing_url_is_an_error_that_names_it() {
        for variables in [&[][..], &[("DLOCK_URL", "")]] {
            let error = config(variables).expect_err("no URL").to_string();
            assert!(error.contains("DLOCK_URL"), "{error}");
        }
    }

    #[test]
    fn a_wrong_value_is_an_error_that_names_its_variable() {
        for name in ["DLOCK_TTL", "DLOCK_TIMEOUT", "DLOCK_REQUEST_TIMEOUT"] {
            for value in [
                "soon",
                "10",
                "s",
                "0s",
                "10x",
                "99999999999999999999s",
                "-1s",
            ] {
                let error = config(&[("DLOCK_URL", "memory:"), (name, value)])
                    .expect_err("a wrong duration")
                    .to_string();
                assert!(error.contains(name) && error.contains(value), "{error}");
            }
        }
    }

    #[test]
    fn a_switch_is_true_or_false() {
        let name = "DLOCK_DETECT_LOCK_ORDER";
        let config = |value| config(&[("DLOCK_URL", "memory:"), (name, value)]);
        for value in ["true", "false"] {
            let shown = format!("{:?}", config(value).expect("a switch"));
            let expected = format!("detect_lock_order: {value}");
            assert!(shown.contains(&expected), "{shown}");
        }
        let error = config("yes").expect_err("no switch").to_string();
        assert!(error.contains(name) && error.contains("\"yes\""), "{error}");
    }
}
