//! Configuration from environment variables.

use std::ffi::OsString;
use std::time::Duration;

use super::Config;
use crate::duration::parse_duration;
use crate::error::LockError;
use crate::key::Shown;
use crate::limits::{self, Setting};

/// Every variable that is read.
const URL: &str = "DLOCK_URL";
const NAMESPACE: &str = "DLOCK_NAMESPACE";
const LABEL: &str = "DLOCK_LABEL";
const TTL: &str = "DLOCK_TTL";
const TIMEOUT: &str = "DLOCK_TIMEOUT";
const REQUEST_TIMEOUT: &str = "DLOCK_REQUEST_TIMEOUT";
const DETECT_LOCK_ORDER: &str = "DLOCK_DETECT_LOCK_ORDER";
const TOKEN_FLOOR: &str = "DLOCK_TOKEN_FLOOR";
const KNOWN: [&str; 8] = [
    URL,
    NAMESPACE,
    LABEL,
    TTL,
    TIMEOUT,
    REQUEST_TIMEOUT,
    DETECT_LOCK_ORDER,
    TOKEN_FLOOR,
];

/// How many typing errors a name may have to be taken for a known one.
const TYPING_ERRORS: usize = 2;

/// Reads the variables of a process, or a replacement for them. A given `url` replaces the one in
/// the environment.
pub(super) fn read(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    url: Option<&str>,
) -> Result<Config, LockError> {
    let environment = Environment::of(variables)?;
    let mut config = match (url, environment.text(URL)) {
        (Some(url), _) => Config::from_url(url)?,
        (None, url) => {
            let url = url?.ok_or_else(|| {
                LockError::config(
                    URL,
                    "not set; name the store, for example redis://127.0.0.1:6379, or memory: for \
                     locks of this process only",
                )
            })?;
            Config::from_setting(URL, &url)?
        }
    };
    if let Some(namespace) = environment.text(NAMESPACE)? {
        config = config.namespace(namespace);
    }
    if let Some(label) = environment.text(LABEL)? {
        super::check_label(LABEL, Some(&label))?;
        config = config.label(label);
    }
    if let Some(ttl) = environment.duration(TTL, &limits::TTL)? {
        config = config.ttl(ttl);
    }
    if let Some(timeout) = environment.duration(TIMEOUT, &limits::TIMEOUT)? {
        config = config.timeout(timeout);
    }
    if let Some(timeout) = environment.duration(REQUEST_TIMEOUT, &limits::REQUEST_TIMEOUT)? {
        config = config.request_timeout(timeout);
    }
    if let Some(detect) = environment.switch(DETECT_LOCK_ORDER)? {
        config = config.detect_lock_order(detect);
    }
    if let Some(floor) = environment.text(TOKEN_FLOOR)? {
        let floor = limits::TOKEN_FLOOR.read(&floor);
        config = config.token_floor(floor.map_err(|why| LockError::config(TOKEN_FLOOR, why))?);
    }
    Ok(config)
}

/// The variables that belong to dlock. An empty one counts as not set.
struct Environment(Vec<(&'static str, OsString)>);

impl Environment {
    /// Refuses a name with a typing error, since its value would silently have no effect. Ignores
    /// other names that begin like ours. Kubernetes sets some for a service called `dlock`:
    /// `DLOCK_PORT`, `DLOCK_SERVICE_HOST`, ….
    fn of(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, LockError> {
        let mut found = Vec::new();
        for (name, value) in variables {
            // Names with another beginning belong to others: `LOCK_TTL`, `CLOCK_URL`.
            let Some(name) = name.to_str().filter(|name| name.starts_with("DL")) else {
                continue;
            };
            if value.is_empty() {
                continue;
            }
            if let Some(known) = KNOWN.into_iter().find(|known| *known == name) {
                found.push((known, value));
            } else if let Some(meant) = meant(name) {
                return Err(LockError::config(
                    Shown(name).to_string(),
                    format!(
                        "dlock knows no such variable; did you mean {meant}? Rename it, or unset it \
                         if it is not for dlock"
                    ),
                ));
            }
        }
        Ok(Self(found))
    }

    fn text(&self, name: &str) -> Result<Option<String>, LockError> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, value)| value.clone().into_string())
            .transpose()
            .map_err(|_| LockError::config(name, "not UTF-8"))
    }

    fn duration(
        &self,
        name: &str,
        setting: &Setting<Duration>,
    ) -> Result<Option<Duration>, LockError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let duration = parse_duration(&text)
            .map_err(|reason| LockError::config(name, without_secret(&text, reason)))?;
        match setting.within(duration) {
            Ok(()) => Ok(Some(duration)),
            Err(reason) => Err(LockError::config(name, reason)),
        }
    }

    fn switch(&self, name: &str) -> Result<Option<bool>, LockError> {
        match self.text(name)?.as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(value) => {
                let reason = format!("{value:?} is neither true nor false");
                Err(LockError::config(name, without_secret(value, reason)))
            }
        }
    }
}

/// The reason why a value is refused, without the value if that is long or may be a URL, or a part
/// of one, in the wrong variable: it may contain a password.
fn without_secret(value: &str, reason: String) -> String {
    const LONGEST: usize = 32;
    match value.len() > LONGEST || value.contains(['@', '/', ':', '?', '#', '&', '=']) {
        true => reason.replacen(&format!("{value:?}"), "its value", 1),
        false => reason,
    }
}

/// The closest known name, if one is close enough.
fn meant(name: &str) -> Option<&'static str> {
    let near = KNOWN.into_iter().filter_map(|known| {
        let distance = distance(name.as_bytes(), known.as_bytes());
        (distance <= TYPING_ERRORS).then_some((distance, known))
    });
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// How many letters were left out, added, mistaken, or exchanged with the next: the optimal string
/// alignment distance.
fn distance(left: &[u8], right: &[u8]) -> usize {
    // The rows of the distance table for the letters of `left` up to the last and the one before
    // it, indexed by the number of letters of `right`.
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (i, &a) in left.iter().enumerate() {
        let mut row = Vec::with_capacity(last.len());
        row.push(i + 1);
        for (j, &b) in right.iter().enumerate() {
            let mistaken = last[j] + usize::from(a != b);
            let mut least = mistaken.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a == right[j - 1] && left[i - 1] == b {
                least = least.min(before_last[j - 1] + 1);
            }
            row.push(least);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

#[cfg(test)]
#[path = "../../../tests/properties/env.rs"]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<Config, LockError> {
        read(
            variables
                .iter()
                .map(|(name, value)| (OsString::from(name), OsString::from(value))),
            None,
        )
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
    fn a_value_out_of_range_is_an_error_that_names_its_variable() {
        for (name, value, says) in [
            ("DLOCK_TTL", "9ms", "too short"),
            ("DLOCK_TTL", "90000h", "too long"),
            ("DLOCK_TIMEOUT", "90000h", "too long"),
            ("DLOCK_REQUEST_TIMEOUT", "25h", "too long"),
        ] {
            let error = config(&[("DLOCK_URL", "memory:"), (name, value)])
                .expect_err("out of range")
                .to_string();
            assert!(error.contains(name) && error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_floor_is_a_number_that_leaves_room() {
        let name = "DLOCK_TOKEN_FLOOR";
        let config = |value| config(&[("DLOCK_URL", "memory:?token_floor=5"), (name, value)]);
        let shown = format!("{:?}", config("7").expect("a floor"));
        assert!(shown.contains("token_floor: 7"), "{shown}");
        let shown = format!("{:?}", config("").expect("that of the URL"));
        assert!(shown.contains("token_floor: 5"), "{shown}");
        for value in ["x", "-1", "9223372036854775808"] {
            let error = config(value).expect_err("no floor").to_string();
            assert!(
                error.contains(name) && error.contains("up to 91"),
                "{error}"
            );
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

    /// Two variables were exchanged, or one has a very long value.
    #[test]
    fn a_value_that_may_be_a_secret_or_is_long_is_not_shown() {
        let urls = [
            "redis://:hunter2@cache",
            "sqlite:a?key=hunter2",
            "password=hunter2",
            "?hunter2",
            "#hunter2",
            "a&hunter2",
        ];
        let long = "9".repeat(100_000);
        for name in ["DLOCK_TTL", "DLOCK_DETECT_LOCK_ORDER"] {
            for value in urls.into_iter().chain([&*long]) {
                let error = config(&[("DLOCK_URL", "memory:"), (name, value)]);
                let error = error.expect_err("a wrong value").to_string();
                assert!(error.contains("its value is"), "{error}");
                assert!(error.len() < 200 && !error.contains("hunter2"), "{error}");
            }
        }
    }

    #[test]
    fn a_name_is_shown_on_one_line() {
        let error = config(&[("DLOCK_\nURL", "memory:")]).expect_err("a slip");
        assert!(error.to_string().contains(r"DLOCK_\nURL:"), "{error}");
    }

    #[test]
    fn a_name_with_a_typing_error_is_told_the_right_one() {
        for (wrong, right) in [
            ("DLOCK_ULR", URL),
            ("DLOCK_UR", URL),
            ("DLOCK_URLS", URL),
            ("DLOK_URL", URL),
            ("DLCOK_URL", URL),
            ("DLOCK_TLL", TTL),
            ("DLOCK_TT", TTL),
            ("DLOCK__TTL", TTL),
            ("DLOCKTTL", TTL),
            ("DLOCK_TIMEOT", TIMEOUT),
            ("DLOCK_TIME_OUT", TIMEOUT),
            ("DLOCK_TMIEUOT", TIMEOUT),
            ("DLOCK_REQUEST_TIMOUTE", REQUEST_TIMEOUT),
            ("DLOCK_NAMSPACES", NAMESPACE),
            ("DLOCK_DETECT_LOCKORDERS", DETECT_LOCK_ORDER),
        ] {
            for with in [&[][..], &[("DLOCK_URL", "memory:")]] {
                let mut variables = with.to_vec();
                variables.push((wrong, "memory:"));
                let error = config(&variables).expect_err(wrong).to_string();
                assert!(
                    error.contains(&format!("{wrong}:"))
                        && error.contains(&format!("did you mean {right}?")),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn other_names_are_left_alone() {
        let mut variables = vec![("DLOCK_URL", "memory:")];
        // Names from Kubernetes for a service `dlock`, names of other programs, names that are
        // three letters off, and an empty variable.
        variables.extend([
            ("DLOCK_PORT", "tcp://10.0.0.11:6379"),
            ("DLOCK_PORT_6379_TCP", "tcp://10.0.0.11:6379"),
            ("DLOCK_PORT_6379_TCP_ADDR", "10.0.0.11"),
            ("DLOCK_PORT_6379_TCP_PORT", "6379"),
            ("DLOCK_PORT_6379_TCP_PROTO", "tcp"),
            ("DLOCK_SERVICE_HOST", "10.0.0.11"),
            ("DLOCK_SERVICE_PORT", "6379"),
            ("DLOCK_SERVICE_PORT_REDIS", "6379"),
            ("DLOCK_TEST_CHILD_URL", "x"),
            ("DLOCK_TEST_ROLE", "x"),
            ("DLOCK_TEST_ALONE", "x"),
            ("LOCK_TTL", "x"),
            ("CLOCK_URL", "x"),
            ("BLOCK_TIMEOUT", "x"),
            ("DLOCK_KEY", "x"),
            ("DLOCK_T", ""),
        ]);
        config(&variables).expect("nothing is wrong");
    }

    #[test]
    fn letters_are_counted() {
        let count = |left: &str, right: &str| {
            let there = distance(left.as_bytes(), right.as_bytes());
            assert_eq!(there, distance(right.as_bytes(), left.as_bytes()));
            there
        };
        for (left, right, expected) in [
            ("", "", 0),
            ("", "ab", 2),
            ("ttl", "ttl", 0),
            ("tlt", "ttl", 1),
            ("tl", "ttl", 1),
            ("tttl", "ttl", 1),
            ("tal", "ttl", 1),
            ("url", "ttl", 2),
            ("port", "ttl", 4),
            ("port", "url", 3),
            // No letter is exchanged twice.
            ("ca", "abc", 3),
        ] {
            assert_eq!(count(left, right), expected, "{left} {right}");
        }
    }
}
