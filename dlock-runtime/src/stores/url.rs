//! Reads the URLs of stores: `scheme://[user:password@]host[:port],…[/path][?option=value&…]`.
//!
//! All stores use this, except the databases: their drivers read URLs themselves.
//!
//! A password that was not percent-encoded may be anywhere in a URL. So no error shows what could
//! be a password, such as an unknown name. The only values that an error shows are the path of a
//! file and a host that is there twice, and these only if no `@` comes behind the `?`.

use std::fmt;

use percent_encoding::percent_decode_str;

use super::address::Address;
use crate::backend::{BackendError, BackendErrorKind};

/// The form of the URLs of one store.
pub(super) struct Form {
    /// The name of the store in messages.
    pub(super) store: &'static str,
    pub(super) scheme: &'static str,
    /// The scheme of encrypted connections.
    pub(super) encrypted: Option<&'static str>,
    pub(super) example: &'static str,
    /// The port of a host that is written without one. `None` if the URL has the path of a unix
    /// socket in place of hosts: `scheme://[user:password@]/path[?option=value&…]`.
    pub(super) port: Option<u16>,
    pub(super) options: &'static [&'static str],
    /// The options of encrypted connections. The value of each is the path of a file: `ca`, whom
    /// to trust in place of the system's authorities; `cert` and `key`, by which the server knows
    /// this client.
    pub(super) files: &'static [&'static str],
}

/// A URL that was read.
pub(super) struct StoreUrl<'u> {
    form: &'static Form,
    pub(super) encrypted: bool,
    /// At least one host, and none of them twice. For a unix socket, only that socket.
    pub(super) hosts: Vec<Address>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// What follows the hosts, without the first slash and still percent-encoded.
    pub(super) path: &'u str,
    options: Vec<(&'static str, String)>,
    /// There is an `@` behind the `?`: what looks like options may be a part of a password.
    may_be_password: bool,
}

impl Form {
    pub(super) fn read<'u>(&'static self, url: &'u str) -> Result<StoreUrl<'u>, BackendError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            self.invalid(format!("not a URL; write for example {}", self.example))
        })?;
        let encrypted = self.encrypted == Some(scheme);
        if !encrypted && scheme != self.scheme {
            return Err(self.invalid(match self.encrypted {
                Some(encrypted) => {
                    format!("its scheme must be {}:// or {encrypted}://", self.scheme)
                }
                None => format!("its scheme must be {}://", self.scheme),
            }));
        }
        if url.contains('#') {
            return Err(self.invalid(
                "a `#` means nothing in it; percent-encode one that belongs to a password",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The user or the password contains a slash, so what looks like a host is a part of it.
        if path.contains('@') {
            return Err(self.invalid(
                "in a user or password, percent-encode characters such as / # ? @ and :",
            ));
        }
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (hosts, path) = match self.port {
            Some(port) => (self.hosts(hosts, port, query)?, path),
            None => (vec![self.socket(hosts, path)?], ""),
        };
        let options = self.options(query, encrypted)?;
        if encrypted && cfg!(not(feature = "tls")) {
            return Err(needs_feature(scheme, "tls"));
        }
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let text = |part: &str| match part {
            "" => Ok(None),
            part => self.decoded(part).map(Some),
        };
        Ok(StoreUrl {
            form: self,
            encrypted,
            hosts,
            user: text(user)?,
            password: text(password)?,
            path,
            options,
            may_be_password: query.contains('@'),
        })
    }

    fn socket(&self, host: &str, path: &str) -> Result<Address, BackendError> {
        let example = self.example;
        if !host.is_empty() {
            return Err(self.invalid(format!(
                "it has the path of a unix socket, and no host; write three slashes, as in \
                 {example}"
            )));
        }
        Address::socket(&self.decoded(path)?).ok_or_else(|| {
            self.invalid(format!(
                "the path of a unix socket is missing, or cannot be shown; write for example \
                 {example}"
            ))
        })
    }

    fn hosts(&self, text: &str, port: u16, query: &str) -> Result<Vec<Address>, BackendError> {
        let example = self.example;
        let mut hosts: Vec<Address> = Vec::new();
        for host in text.split(',') {
            if host.is_empty() {
                return Err(self.invalid(format!("a host is missing; write for example {example}")));
            }
            let host = Address::parse(host, port).ok_or_else(|| {
                // The text is not shown: it may be a password whose host is missing.
                if let Some((name, _)) = host.rsplit_once(':')
                    && Address::parse(name, port).is_some()
                {
                    return self.invalid(format!(
                        "behind the colon of host {} comes a port, a number from 1 to 65535; write \
                         for example {example}",
                        hosts.len() + 1
                    ));
                }
                self.invalid(format!(
                    "a host in it is not of the form host[:port]; write for example {example}, and \
                     in a user or password, percent-encode characters such as / # ? @ and :"
                ))
            })?;
            let name = host.to_string();
            let same = |other: &Address| other.to_string().eq_ignore_ascii_case(&name);
            if hosts.iter().any(same) {
                // With an `@` behind the `?`, both may be in a password.
                let host = match query.contains('@') {
                    true => "a host".to_owned(),
                    false => name,
                };
                return Err(self.invalid(format!("it names {host} twice")));
            }
            hosts.push(host);
        }
        Ok(hosts)
    }

    fn options(
        &self,
        query: &str,
        encrypted: bool,
    ) -> Result<Vec<(&'static str, String)>, BackendError> {
        let mut options = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let known = self.options.iter().chain(self.files);
            let name = *known
                .into_iter()
                .find(|known| **known == name)
                .ok_or_else(|| self.unknown_option())?;
            if self.files.contains(&name) && !encrypted {
                return Err(self.invalid(format!(
                    "`{name}` needs an encrypted connection; write {}://",
                    self.encrypted.unwrap_or_default()
                )));
            }
            options.push((name, self.decoded(value)?));
        }
        Ok(options)
    }

    fn unknown_option(&self) -> BackendError {
        let list = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            names.join(", ")
        };
        let known = match (self.options, self.files, self.encrypted) {
            ([], [], _) | ([], _, None) => "none".to_owned(),
            (options, [], _) | (options, _, None) => list(options),
            ([], files, Some(scheme)) => format!("{} with {scheme}://", list(files)),
            (options, files, Some(scheme)) => {
                format!("{}, and with {scheme}:// {}", list(options), list(files))
            }
        };
        self.invalid(format!(
            "it has an unknown parameter; there are {known}; of every store, `Config` reads \
             `token_floor=N`"
        ))
    }

    /// A part of a URL without its percent-encoding.
    fn decoded(&self, part: &str) -> Result<String, BackendError> {
        percent_decode_str(part)
            .decode_utf8()
            .map(String::from)
            .map_err(|_| self.invalid("percent-encoded text in it is not UTF-8"))
    }

    pub(super) fn invalid(&self, reason: impl fmt::Display) -> BackendError {
        let store = self.store;
        BackendError::new(
            BackendErrorKind::Config,
            format!("invalid {store} URL: {reason}"),
        )
    }
}

/// The error for a URL whose scheme needs a feature that is off.
pub(super) fn needs_feature(scheme: &str, feature: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Config,
        format!(
            "`{scheme}://` needs the cargo feature `{feature}`; turn it on: \
             dlock-rs = {{ …, features = [\"{feature}\"] }}"
        ),
    )
}

impl StoreUrl<'_> {
    pub(super) fn decoded(&self, part: &str) -> Result<String, BackendError> {
        self.form.decoded(part)
    }

    pub(super) fn invalid(&self, reason: impl fmt::Display) -> BackendError {
        self.form.invalid(reason)
    }

    /// An error if the URL says who the client is, or whom to trust: the service has said that in
    /// another way.
    pub(super) fn says_only_where(&self) -> Result<(), BackendError> {
        let mut files = self.form.files.iter();
        let file = files.find(|file| self.option(file).is_some());
        let who = self.user.is_some() || self.password.is_some();
        match (who, file) {
            (true, _) => Err(self.invalid(
                "it has a user or a password, which belong to the settings that came along with \
                 it; leave them out",
            )),
            (_, Some(file)) => Err(self.invalid(format!(
                "`{file}` belongs to the settings that came along with it; leave it out"
            ))),
            _ => Ok(()),
        }
    }

    /// The value of an option. If the URL has the option several times, the last one counts.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        let mut options = self.options.iter().rev();
        let found = options.find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// What the value of an option stands for. The value must be one of these.
    pub(super) fn choice<T: Copy>(
        &self,
        name: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, BackendError> {
        let Some(said) = self.option(name) else {
            return Ok(None);
        };
        let chosen = choices.iter().find(|(choice, _)| *choice == said);
        chosen.map(|(_, meant)| Some(*meant)).ok_or_else(|| {
            let names: Vec<_> = choices
                .iter()
                .map(|(name, _)| format!("`{name}`"))
                .collect();
            self.invalid(format!("`{name}` is {}", names.join(" or ")))
        })
    }
}

/// The files of an encrypted connection, in PEM form.
#[cfg(feature = "tls")]
impl StoreUrl<'_> {
    /// Whom to trust in place of the system's authorities.
    pub(super) fn authority(&self) -> Result<Option<String>, BackendError> {
        let path = self.option("ca");
        path.map(|path| self.certificate("ca", path)).transpose()
    }

    /// The certificate that this client shows, and its key.
    pub(super) fn identity(&self) -> Result<Option<(String, String)>, BackendError> {
        match (self.option("cert"), self.option("key")) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => {
                let certificate = self.certificate("cert", cert)?;
                Ok(Some((certificate, self.file("key", key)?)))
            }
            _ => Err(self.invalid("`cert` and `key` belong together; name both or none")),
        }
    }

    /// The error for a file that was read, and that the client cannot use.
    pub(super) fn unusable(
        &self,
        option: &str,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> BackendError {
        let path = self.shown(self.option(option).unwrap_or_default());
        let reason = format!(
            "the file in `{option}={path}` cannot be used, it must be in PEM form: {error}"
        );
        self.invalid(reason).with_cause(error)
    }

    fn certificate(&self, option: &str, path: &str) -> Result<String, BackendError> {
        let pem = self.file(option, path)?;
        // With such a file, some clients would trust nobody, and report that only at the first use.
        if !pem.contains("-----BEGIN CERTIFICATE-----") {
            return Err(self.invalid(format!(
                "the file in `{option}={}` holds no certificate; it must be in PEM form",
                self.shown(path)
            )));
        }
        Ok(pem)
    }

    fn file(&self, option: &str, path: &str) -> Result<String, BackendError> {
        let bytes = std::fs::read(path).map_err(|error| {
            let path = self.shown(path);
            let reason = format!("the file in `{option}={path}` cannot be read: {error}");
            self.invalid(reason).with_cause(error)
        })?;
        // The text between the certificates may be in any encoding.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The path of a file, in an error.
    fn shown<'p>(&self, path: &'p str) -> impl fmt::Display + 'p {
        crate::key::Shown(match self.may_be_password {
            true => "…",
            false => path,
        })
    }
}

#[cfg(test)]
#[path = "../../tests/properties/url.rs"]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) static FORM: Form = Form {
        store: "Store",
        scheme: "store",
        encrypted: Some("stores"),
        example: "store://a,b/c",
        port: Some(5),
        options: &["word", "other"],
        files: &["ca", "cert", "key"],
    };

    #[test]
    fn every_part_is_read() {
        let text = "store://al%3Aice:p%40ss%2C@a,b:7,[::1]/my%20path/3?word=a%2Bb+c&&other";
        let url = FORM.read(text).expect("a valid URL");
        let hosts: Vec<_> = url.hosts.iter().map(Address::to_string).collect();
        assert_eq!(hosts, ["a:5", "b:7", "[::1]:5"]);
        assert_eq!(url.user.as_deref(), Some("al:ice"));
        assert_eq!(url.password.as_deref(), Some("p@ss,"));
        assert_eq!(url.path, "my%20path/3");
        assert_eq!(url.decoded(url.path).expect("text"), "my path/3");
        assert_eq!(url.option("word"), Some("a+b+c"));
        assert_eq!(url.option("other"), Some(""));
        let url = FORM
            .read("store://:secret@a/?word=x&word=y")
            .expect("a URL");
        assert_eq!((url.user, url.path), (None, ""));
        let url = FORM.read("store://a?word=x&word=y").expect("a URL");
        assert_eq!(url.option("word"), Some("y"));
        assert_eq!(url.choice("other", &[("a", 1)]).expect("none"), None);
        assert_eq!(
            url.choice("word", &[("x", 1), ("y", 2)]).expect("y"),
            Some(2)
        );
        let error = url.choice("word", &[("a", 1), ("b", 2)]).expect_err("y");
        assert!(
            error.to_string().ends_with("`word` is `a` or `b`"),
            "{error}"
        );
    }

    #[test]
    fn what_it_cannot_read_it_refuses_without_showing_the_password() {
        for (url, says) in [
            ("", "not a URL; write for example store://a,b/c"),
            ("hunter2", "not a URL"),
            ("store:hunter2", "not a URL"),
            (
                "http://:hunter2@a",
                "its scheme must be store:// or stores://",
            ),
            ("hunter2://a", "its scheme"),
            ("store://", "a host is missing"),
            ("store:///c", "a host is missing"),
            ("store://:hunter2@", "a host is missing"),
            ("store://:hunter2@/c", "a host is missing"),
            ("store://:hunter2@a,,b", "a host is missing"),
            ("store://:hunter2@a,b,/c", "a host is missing"),
            ("store://:hunter2@a,b,a", "names a:5 twice"),
            ("store://:hunter2@a,A:5", "names A:5 twice"),
            ("store://hunter2,hunter2?x@a", "names a host twice"),
            (
                "store://:hunter2@a:b",
                "behind the colon of host 1 comes a port, a number from 1 to 65535; write for \
                 example store://a,b/c",
            ),
            ("store://a,b:hunter2,c", "of host 2 comes a port"),
            ("store://a:0", "of host 1 comes a port"),
            ("store://a:65536", "of host 1 comes a port"),
            ("store://[::1]:x", "of host 1 comes a port"),
            ("store://:hunter2@a b", "host[:port]"),
            ("store://a&word=hunter2", "host[:port]"),
            ("store://word=hunter2", "host[:port]"),
            ("store://:hunter2/x@a", "percent-encode"),
            ("store://user:22/hunter2@a", "percent-encode"),
            ("store://:hunter2#x@a", "percent-encode"),
            ("store://:hunter2@a#x", "percent-encode"),
            (
                "store://a?hunter2",
                "unknown parameter; there are `word`, `other`, and with",
            ),
            ("store://a?hunter2=word", "unknown parameter"),
            (
                "store://:hunter2@a?ca=x",
                "`ca` needs an encrypted connection; write stores://",
            ),
            ("store://hunter2%ff@a", "UTF-8"),
        ] {
            let error = FORM.read(url).map(drop).expect_err(url);
            assert_eq!(error.kind(), BackendErrorKind::Config);
            let message = error.to_string();
            assert!(message.starts_with("invalid Store URL: "), "{message}");
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn files_are_read_at_once() {
        for (url, says) in [
            (
                "stores://a?ca=/nowhere.pem",
                "`ca=/nowhere.pem` cannot be read",
            ),
            (
                "stores://a?ca=/dev/null",
                "`ca=/dev/null` holds no certificate",
            ),
            ("stores://a?cert=/nowhere.pem", "belong together"),
            ("stores://a?key=/nowhere.pem", "belong together"),
            ("stores://a?cert=/nowhere.pem&key=x", "`cert=/nowhere.pem`"),
            ("stores://user:22?ca=hunter2@a", "`ca=…` cannot be read"),
            (
                "stores://user:22?ca=hunter2&word=x@a",
                "`ca=…` cannot be read",
            ),
        ] {
            let read = FORM.read(url).expect(url);
            let error = match read.authority() {
                Ok(_) => read.identity().map(drop).expect_err(url),
                Err(error) => error,
            };
            assert!(error.to_string().contains(says), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{url}: {error}");
        }
        let url = FORM.read("stores://a").expect("a URL");
        assert!(url.encrypted && matches!(url.authority(), Ok(None)));
        assert!(matches!(url.identity(), Ok(None)));
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn encryption_says_which_feature_it_needs() {
        let error = FORM.read("stores://a?ca=x").map(drop).expect_err("no TLS");
        assert!(error.to_string().contains("feature `tls`"), "{error}");
    }
}
