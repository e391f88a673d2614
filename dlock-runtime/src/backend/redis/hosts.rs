//! A store URL that names several hosts, read as those of one server each.

use super::settings::{Settings, invalid};
use crate::backend::{BackendError, hosts};

/// `scheme://[user:password@]host[:port][,host[:port]…][/path][?query]`.
///
/// Each part is as it stands in the URL: a host and its login are read by
/// [`nodes`](Self::nodes), in the way of a URL with one host.
pub(super) struct Hosts<'u> {
    parts: hosts::Hosts<'u>,
    /// The authority's certificate, for every connection.
    ca: Option<&'u str>,
    options: Vec<(&'u str, &'u str)>,
}

impl<'u> Hosts<'u> {
    /// Takes `redis+<kind>://…` or `rediss+<kind>://…` apart. An example of
    /// such a URL says what is missing.
    pub(super) fn parse(url: &'u str, example: &str) -> Result<Self, BackendError> {
        let parts = hosts::Hosts::parse(url, example).map_err(invalid)?;
        let mut ca = None;
        let mut options = Vec::new();
        for &option in parts.options() {
            match option {
                ("ca", path) => ca = Some(path),
                option => options.push(option),
            }
        }
        Ok(Self { parts, ca, options })
    }

    /// The settings of every host, in order, none of them twice. They log in
    /// with the URL's user and password, or with none.
    pub(super) fn nodes(
        &self,
        default_port: u16,
        with_login: bool,
        database: &str,
    ) -> Result<Vec<Settings>, BackendError> {
        let login = if with_login { self.parts.login() } else { "" };
        let mut nodes: Vec<Settings> = Vec::with_capacity(self.parts.hosts().len());
        for host in self.parts.hosts() {
            let node = self.read(login, &hosts::with_port(host, default_port), database)?;
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
        self.read(self.parts.login(), "elsewhere", database)
    }

    fn read(&self, login: &str, host: &str, database: &str) -> Result<Settings, BackendError> {
        let encrypted = self.parts.scheme().starts_with("rediss");
        let scheme = if encrypted { "rediss" } else { "redis" };
        let ca = self.ca.map(|path| format!("?ca={path}"));
        let ca = ca.as_deref().unwrap_or_default();
        Settings::of_server(&format!("{scheme}://{login}@{host}/{database}{ca}"))
    }

    /// What stands behind the hosts, without the first slash.
    pub(super) fn path(&self) -> &'u str {
        self.parts.path()
    }

    /// What stands behind the `?`, but for `ca`: names, and values still to be
    /// [decoded](decoded).
    pub(super) fn options(&self) -> &[(&'u str, &'u str)] {
        &self.options
    }
}

/// A part of a URL, without its percent-encoding.
pub(super) fn decoded(part: &str) -> Result<String, BackendError> {
    hosts::decoded(part).map_err(invalid)
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
