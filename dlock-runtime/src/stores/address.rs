//! Where a server listens.

use std::fmt;

/// The host is as the URL or another server gave it, and two that are spelled
/// differently are two.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    /// An address of IPv6 has no brackets here.
    pub(super) host: String,
    /// 0 where the host is the path of a unix socket.
    pub(super) port: u16,
}

impl Address {
    /// A host as drivers give it, with or without the brackets of IPv6.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn of(host: &str, port: u16) -> Self {
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Self { host, port }
    }

    /// Reads `host[:port]` of a URL, where an address of IPv6 stands in brackets. `None`
    /// if it is not of this form.
    #[cfg(feature = "url")]
    pub(super) fn parse(text: &str, default_port: u16) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                // A scope may follow: `fe80::1%eth0`.
                let (address, _) = host.split_once('%').unwrap_or((host, ""));
                address.parse::<std::net::Ipv6Addr>().ok()?;
                (host, port)
            }
            None => {
                let end = text.find(':').unwrap_or(text.len());
                let (host, port) = text.split_at(end);
                let strange = |c: char| c.is_whitespace() || "[]@/\\".contains(c);
                if host.is_empty() || host.contains(strange) {
                    return None;
                }
                (host, port)
            }
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => default_port,
            None => return None,
            Some(port) => port.parse().ok().filter(|port| *port > 0)?,
        };
        // It is shown in messages and logs.
        if !host.escape_debug().eq(host.chars()) {
            return None;
        }
        Some(Self {
            host: host.to_owned(),
            port,
        })
    }
}

#[cfg(feature = "url")]
impl Address {
    /// A unix socket, by its path without the first slash. `None` if there is none, or it
    /// cannot be shown in messages.
    pub(super) fn socket(path: &str) -> Option<Self> {
        let can_be_shown = path.escape_debug().eq(path.chars());
        (!path.is_empty() && can_be_shown).then(|| Self {
            host: format!("/{path}"),
            port: 0,
        })
    }

    /// The path, if it is a unix socket.
    #[cfg(feature = "redis")]
    pub(super) fn path(&self) -> Option<&str> {
        (self.port == 0).then_some(&self.host)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if *port == 0 {
            f.write_str(host)
        } else if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

#[cfg(all(test, feature = "url"))]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_have_a_port() {
        for (text, shown) in [
            ("a", "a:5"),
            ("a.example:7", "a.example:7"),
            ("10.0.0.1", "10.0.0.1:5"),
            ("[::1]", "[::1]:5"),
            ("[fe80::1%eth0]:8", "[fe80::1%eth0]:8"),
        ] {
            let address = Address::parse(text, 5).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(address.to_string(), shown);
            assert_eq!(Address::parse(shown, 1), Some(address));
        }
        for text in [
            "",
            ":7",
            "a:",
            "a:b",
            "a:0",
            "a:65536",
            "a b",
            "a\n",
            "::1",
            "[::1",
            "[a]",
            "[::1]7",
            "u@a",
            "[]",
            "a\u{202e}b",
            "a\"",
        ] {
            assert_eq!(Address::parse(text, 5), None, "{text}");
        }
    }
}
