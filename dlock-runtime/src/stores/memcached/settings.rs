//! The settings in a store URL.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::num::NonZeroU16;

use async_memcached::Error;
use tokio::net::lookup_host;

use super::errors::Failed;
use crate::backend::{BackendError, BackendErrorKind};
use crate::stores::address::{Address, shown};
use crate::stores::url::Form;

static FORM: Form = Form {
    store: "memcached",
    scheme: "memcached",
    encrypted: None,
    example: "memcached://127.0.0.1:11211",
    port: Some(11211),
    options: &[],
    files: &[],
};

/// Where the server is.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    host: String,
    port: NonZeroU16,
}

impl Settings {
    pub(super) fn from_url(url: &str) -> Result<Self, BackendError> {
        let mut url = FORM.read(url)?;
        if url.user.is_some() || url.password.is_some() {
            return Err(url.invalid(
                "it holds a user or password, and the client has no login; let the network keep \
                 others out",
            ));
        }
        if !url.path.is_empty() {
            return Err(url.invalid("nothing may stand behind the host and port"));
        }
        let Address::Host { host, port } = url.hosts.remove(0) else {
            return Err(url.invalid("it names a unix socket; write a host"));
        };
        if !url.hosts.is_empty() {
            return Err(url.invalid(
                "it names several servers; the locks are on one: two that do not know of each \
                 other would both give the same lock",
            ));
        }
        if host.contains(':') {
            return Err(url.invalid(
                "the client reaches servers by IPv4 only; write a name or an IPv4 address",
            ));
        }
        Ok(Self { host, port })
    }

    /// The present address of the server's name. The client itself would take the first address
    /// that answers, perhaps a different one for each connection.
    pub(super) async fn server(&self) -> Result<SocketAddrV4, Failed> {
        let Self { host, port } = self;
        let found = lookup_host((&**host, port.get())).await;
        let server = the_only_one(found.map_err(Error::Connect)?)?;
        Ok(SocketAddrV4::new(server, port.get()))
    }

    /// The host and port, for messages.
    pub(super) fn address(&self) -> String {
        shown(&self.host, self.port.get())
    }
}

/// The only server with these addresses. Two servers that do not know each other would both grant
/// the same lock.
fn the_only_one(addresses: impl Iterator<Item = SocketAddr>) -> Result<Ipv4Addr, Failed> {
    let servers: BTreeSet<_> = addresses
        .filter_map(|address| match address.ip() {
            IpAddr::V4(server) => Some(server),
            // The client does not support IPv6.
            IpAddr::V6(_) => None,
        })
        .collect();
    let config = BackendErrorKind::Config;
    match *Vec::from_iter(servers) {
        [server] => Ok(server),
        [] => Err(Failed::not_done(
            config,
            "the name leads to no IPv4 address, and the client has no IPv6",
            "write one that has such an address",
        )),
        ref several => {
            let servers: Vec<_> = several.iter().map(ToString::to_string).collect();
            let said = format!(
                "the name leads to {} addresses ({}), and servers that do not know of each other \
                 would all give the same lock",
                servers.len(),
                servers.join(", ")
            );
            let advice = "write a name or an address that leads to one server";
            Err(Failed::not_done(config, said, advice))
        }
    }
}

/// The name of the server in messages.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memcached at {}", self.address())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::store::Cause;

    #[test]
    fn every_part_is_read() {
        for (url, address) in [
            ("memcached://cache", "cache:11211"),
            ("memcached://cache.shop.example:7/", "cache.shop.example:7"),
            ("memcached://10.0.0.1", "10.0.0.1:11211"),
        ] {
            let settings = Settings::from_url(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(settings.to_string(), format!("memcached at {address}"));
        }
    }

    #[test]
    fn a_name_leads_to_one_server() {
        let only = |addresses: &[&str]| {
            let sockets = addresses.iter().map(|address| {
                let ip = address.parse::<IpAddr>().expect("an address");
                SocketAddr::new(ip, 11211)
            });
            the_only_one(sockets).map_err(|failed| {
                let settings = Settings::from_url("memcached://cache").expect("a URL");
                match failed.at(&settings, Instant::now()).cause {
                    Cause::Error(error) => error,
                    cause => panic!("{cause:?}"),
                }
            })
        };
        for one in [
            &["127.0.0.1"][..],
            // `localhost`, and a resolver that gives each address twice.
            &["::1", "127.0.0.1"],
            &["10.0.0.1", "10.0.0.1"],
        ] {
            only(one).unwrap_or_else(|error| panic!("{one:?}: {error}"));
        }
        for (wrong, says) in [
            (&["10.0.0.2", "10.0.0.1"][..], "(10.0.0.1, 10.0.0.2)"),
            (&["::1"], "no IPv4 address"),
            (&[], "no IPv4 address"),
        ] {
            let error = only(wrong).expect_err("not one server");
            assert_eq!(error.kind(), BackendErrorKind::Config);
            let message = error.to_string();
            assert!(message.contains("memcached at cache:11211"), "{message}");
            assert!(message.contains(says), "{wrong:?}: {message}");
        }
    }

    #[test]
    fn what_it_cannot_read_it_refuses_without_showing_it() {
        for (url, says) in [
            ("memcached://user:hunter2@cache", "no login"),
            ("memcached://hunter2@cache", "no login"),
            ("memcached://one,two", "several servers"),
            ("memcached://one:1,two:2", "several servers"),
            ("memcached://[::1]:11211", "IPv4"),
            ("memcached://cache/hunter2", "nothing may stand behind"),
            ("memcached://cache?hunter2", "there are none"),
            ("memcacheds://cache", "must be memcached://"),
        ] {
            let error = Settings::from_url(url).expect_err(url);
            let message = error.to_string();
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
    }
}
