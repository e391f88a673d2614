//! A store URL that may name several hosts, taken apart.

use percent_encoding::percent_decode_str;

/// `scheme://[user:password@]host[:port][,host[:port]…][/path][?option=value&…]`.
///
/// Each part is as it stands in the URL: what it means is the store's to say,
/// and so is the error around the reasons given here, which never show a
/// password.
pub(super) struct Hosts<'u> {
    scheme: &'u str,
    login: &'u str,
    hosts: Vec<&'u str>,
    path: &'u str,
    options: Vec<(&'u str, &'u str)>,
}

impl<'u> Hosts<'u> {
    /// An example of such a URL says what is missing.
    pub(super) fn parse(url: &'u str, example: &str) -> Result<Self, String> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| format!("not a URL; write for example {example}"))?;
        if url.contains('#') {
            return Err(
                "a `#` means nothing in it; percent-encode one that belongs to a password"
                    .to_owned(),
            );
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // What looks like a host would be a part of the password.
        if path.contains('@') {
            return Err(
                "in a user or password, percent-encode characters such as / # ? @ and :".to_owned(),
            );
        }
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let hosts: Vec<_> = hosts.split(',').collect();
        if hosts.iter().any(|host| host.is_empty()) {
            return Err(format!("a host is missing; write for example {example}"));
        }
        let options = query
            .split('&')
            .filter(|option| !option.is_empty())
            .map(|option| option.split_once('=').unwrap_or((option, "")))
            .collect();
        Ok(Self {
            scheme,
            login,
            hosts,
            path,
            options,
        })
    }

    pub(super) fn scheme(&self) -> &'u str {
        self.scheme
    }

    /// `user:password`, or as much of it as there is.
    pub(super) fn login(&self) -> &'u str {
        self.login
    }

    /// Each with its port, if it has one.
    pub(super) fn hosts(&self) -> &[&'u str] {
        &self.hosts
    }

    /// What stands behind the hosts, without the first slash.
    pub(super) fn path(&self) -> &'u str {
        self.path
    }

    /// What stands behind the `?`: names, and values still to be
    /// [decoded](decoded).
    pub(super) fn options(&self) -> &[(&'u str, &'u str)] {
        &self.options
    }
}

/// A host with its port.
pub(super) fn with_port(host: &str, default_port: u16) -> String {
    // An address of IPv6 stands in brackets.
    let port = host.rsplit_once(']').map_or(host, |(_, port)| port);
    if port.contains(':') {
        host.to_owned()
    } else {
        format!("{host}:{default_port}")
    }
}

/// A part of a URL, without its percent-encoding.
pub(super) fn decoded(part: &str) -> Result<String, String> {
    percent_decode_str(part)
        .decode_utf8()
        .map(String::from)
        .map_err(|_| "percent-encoded text in it is not UTF-8".to_owned())
}
