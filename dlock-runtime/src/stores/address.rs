//! The address at which a server listens.

#[cfg(feature = "url")]
use std::{fmt, num::NonZeroU16};

/// The host is written as the URL or another server gave it. Two spellings of one host are two
/// addresses.
#[cfg(feature = "url")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Address {
    /// An IPv6 address has no brackets here.
    Host { host: String, port: NonZeroU16 },
    /// The path of a unix socket.
    Socket(String),
}

#[cfg(feature = "url")]
impl Address {
    /// `None` for port 0, where nobody listens. A server gives this port for itself if it listens
    /// only at another one, for example for TLS. `None` also for a host that no server has.
    pub(super) fn at(host: &str, port: u16) -> Option<Self> {
        /// Longer than the name of any host (RFC 1035, 2.3.4).
        const TOO_LONG: usize = 256;
        if host.len() >= TOO_LONG || !can_be_shown(host) {
            return None;
        }
        Some(Self::Host {
            host: host.to_owned(),
            port: NonZeroU16::new(port)?,
        })
    }

    /// The address of another server, as the server at this address has named it. Without a host,
    /// the other server is on the same host.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn beside(&self, host: &str, port: u16) -> Option<Self> {
        match (host, self) {
            ("", Self::Host { host, .. }) => Self::at(host, port),
            ("", Self::Socket(_)) => None,
            (host, _) => Self::at(host, port),
        }
    }

    /// Reads `host[:port]` in a URL, with an IPv6 address in brackets: `[::1]:6379`. `None` if the
    /// text does not have this form.
    pub(super) fn parse(text: &str, default_port: u16) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                // A scope may follow the address: `fe80::1%eth0`.
                let (address, _) = host.split_once('%').unwrap_or((host, ""));
                address.parse::<std::net::Ipv6Addr>().ok()?;
                (host, port)
            }
            None => {
                let end = text.find(':').unwrap_or(text.len());
                let (host, port) = text.split_at(end);
                // With `&` or `=` it is a parameter in front of which the `?` is missing.
                let strange = |c: char| c.is_whitespace() || "[]@/\\&=".contains(c);
                if host.is_empty() || host.contains(strange) {
                    return None;
                }
                (host, port)
            }
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => default_port,
            None => return None,
            Some(port) => port.parse().ok()?,
        };
        Self::at(host, port)
    }

    /// The unix socket at this path, which is written without its first slash. `None` if the path
    /// is empty, or cannot be shown in messages.
    pub(super) fn socket(path: &str) -> Option<Self> {
        (!path.is_empty() && can_be_shown(path)).then(|| Self::Socket(format!("/{path}")))
    }
}

#[cfg(feature = "url")]
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match self {
            Self::Host { host, port } => shown(host, port.get()),
            Self::Socket(path) => path.clone(),
        })
    }
}

/// Whether messages and logs can show this as it is, without escaping.
#[cfg(feature = "url")]
pub(super) fn can_be_shown(text: &str) -> bool {
    text.escape_debug().eq(text.chars())
}

/// The address as messages show it. Drivers give an IPv6 host with or without its brackets.
pub(super) fn shown(host: &str, port: u16) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
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
