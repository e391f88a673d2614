//! A store URL that names several hosts, taken apart.

use percent_encoding::percent_decode_str;

use super::settings::{Settings, invalid};
use crate::backend::BackendError;

/// `scheme://[user:password@]host[:port][,host[:port]…][/path][?query]`.
///
/// Each part is as it stands in the URL: a host and its login are read by
/// [`nodes`](Self::nodes), in the way of a URL with one host.
pub(super) struct Hosts<'u> {
    encrypted: bool,
    login: &'u str,
    hosts: Vec<&'u str>,
    path: &'u str,
    /// The authority's certificate, for every connection.
    ca: Option<&'u str>,
    options: Vec<(&'u str, &'u str)>,
}

impl<'u> Hosts<'u> {
    /// Takes `redis+<kind>://…` or `rediss+<kind>://…` apart. An example of
    /// such a URL says what is missing.
    pub(super) fn parse(url: &'u str, example: &str) -> Result<Self, BackendError> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| invalid(format!("not a URL; write for example {example}")))?;
        if url.contains('#') {
            return Err(invalid(
                "a `#` means nothing in it; percent-encode one that belongs to a password",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // What looks like a host would be a part of the password.
        if path.contains('@') {
            return Err(invalid(
                "in a user or password, percent-encode characters such as / # ? @ and :",
            ));
        }
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let hosts: Vec<_> = hosts.split(',').collect();
        if hosts.iter().any(|host| host.is_empty()) {
            return Err(invalid(format!(
                "a host is missing; write for example {example}"
            )));
        }
        let mut parsed = Self {
            encrypted: scheme.starts_with("rediss"),
            login,
            hosts,
            path,
            ca: None,
            options: Vec::new(),
        };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=').unwrap_or((option, "")) {
                ("ca", path) => parsed.ca = Some(path),
                option => parsed.options.push(option),
            }
        }
        Ok(parsed)
    }

    /// The settings of every host, in order, none of them twice. They log in
    /// with the URL's user and password, or with none.
    pub(super) fn nodes(
        &self,
        default_port: u16,
        with_login: bool,
        database: &str,
    ) -> Result<Vec<Settings>, BackendError> {
        let login = if with_login { self.login } else { "" };
        let mut nodes: Vec<Settings> = Vec::with_capacity(self.hosts.len());
        for host in &self.hosts {
            // An address of IPv6 stands in brackets.
            let port = host.rsplit_once(']').map_or(*host, |(_, port)| port);
            let node = if port.contains(':') {
                self.read(login, host, database)?
            } else {
                self.read(login, &format!("{host}:{default_port}"), database)?
            };
            let place = node.place().to_string();
            let same = |other: &Settings| other.place().to_string().eq_ignore_ascii_case(&place);
            if nodes.iter().any(same) {
                return Err(invalid(format!("it names {place} twice")));
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    /// The URL's user and password, for a host that is named elsewhere.
    pub(super) fn login(&self, database: &str) -> Result<Settings, BackendError> {
        self.read(self.login, "elsewhere", database)
    }

    fn read(&self, login: &str, host: &str, database: &str) -> Result<Settings, BackendError> {
        let scheme = if self.encrypted { "rediss" } else { "redis" };
        let ca = self.ca.map(|path| format!("?ca={path}"));
        let ca = ca.as_deref().unwrap_or_default();
        Settings::of_server(&format!("{scheme}://{login}@{host}/{database}{ca}"))
    }

    /// What stands behind the hosts, without the first slash.
    pub(super) fn path(&self) -> &'u str {
        self.path
    }

    /// What stands behind the `?`, but for `ca`: names, and values still to be
    /// [decoded](decoded).
    pub(super) fn options(&self) -> &[(&'u str, &'u str)] {
        &self.options
    }
}

/// A part of a URL, without its percent-encoding.
pub(super) fn decoded(part: &str) -> Result<String, BackendError> {
    percent_decode_str(part)
        .decode_utf8()
        .map(String::from)
        .map_err(|_| invalid("percent-encoded text in it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendErrorKind;

    const EXAMPLE: &str = "redis+sentinel://s1,s2,s3/mymaster";

    fn addresses(url: &str, default_port: u16) -> Vec<String> {
        let nodes =
            Hosts::parse(url, EXAMPLE).and_then(|hosts| hosts.nodes(default_port, true, ""));
        nodes
            .unwrap_or_else(|error| panic!("{url}: {error}"))
            .iter()
            .map(|node| node.place().to_string().replace("redis at ", ""))
            .collect()
    }

    #[test]
    fn every_host_is_read() {
        assert_eq!(
            addresses("redis+x://a,b:7,[::1],[::2]:8/m", 5),
            ["a:5", "b:7", "[::1]:5", "[::2]:8"]
        );
    }

    #[test]
    fn every_part_is_read() {
        let url = "redis+x://alice:p%40ss%2C@a,b/my%20master/3?replicas=1&word=a%2Bb+c&&flag";
        let hosts = Hosts::parse(url, EXAMPLE).expect("a valid URL");
        assert_eq!(hosts.path(), "my%20master/3");
        assert_eq!(
            hosts.options(),
            [("replicas", "1"), ("word", "a%2Bb+c"), ("flag", "")]
        );
        for node in hosts.nodes(1, true, "3").expect("valid hosts") {
            assert_eq!(node.login.username(), Some("alice"));
            assert_eq!(node.login.password(), Some("p@ss,"));
            assert_eq!(node.login.db(), 3);
        }
        for node in hosts.nodes(1, false, "").expect("valid hosts") {
            assert_eq!(node.login.username(), None);
            assert_eq!(node.login.password(), None);
            assert_eq!(node.login.db(), 0);
        }
        assert_eq!(decoded("a%2Bb+c").expect("text"), "a+b+c");
    }

    #[test]
    fn what_it_cannot_read_it_refuses_without_showing_the_password() {
        for (url, says) in [
            ("redis+x:hunter2", "not a URL"),
            ("redis+x://", "a host is missing"),
            ("redis+x:///m", "a host is missing"),
            ("redis+x://:hunter2@/m", "a host is missing"),
            ("redis+x://:hunter2@a,,b/m", "a host is missing"),
            ("redis+x://:hunter2@a,b,/m", "a host is missing"),
            ("redis+x://:hunter2@a,b,a/m", "names redis at a:5 twice"),
            ("redis+x://:hunter2@a,A:5/m", "names redis at A:5 twice"),
            ("redis+x://:hunter2@a:b/m", "not a URL"),
            ("redis+x://:hunter2@a b/m", "not a URL"),
            ("redis+x://:hunter2/x@a,b/m", "percent-encode"),
            ("redis+x://user:22/hunter2@a,b/m", "percent-encode"),
            ("redis+x://:hunter2#x@a,b/m", "percent-encode"),
            ("redis+x://a,b/m?ca=x", "rediss://"),
        ] {
            let read = Hosts::parse(url, EXAMPLE).and_then(|hosts| hosts.nodes(5, true, ""));
            let Err(error) = read else {
                panic!("{url} was read");
            };
            assert_eq!(error.kind(), BackendErrorKind::Config);
            let message = error.to_string();
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
        assert!(decoded("%ff").is_err());
    }
}
