//! Walks through the names of all items of the server.
//!
//! The walk through the server's lists (`lru_crawler metadump all`) skips every item that is read at
//! that moment, so a lock for which many wait was missing in most lists. The one through its hash
//! table (`hash`) skips none. But before 1.6.19 that one keeps some of the items locked while it
//! waits for its reader (<https://github.com/memcached/memcached/pull/998>): if we stood still, all
//! connections that want these items would hang, and with them renewals. There it is used only
//! while all that it has to say fits into the server's buffers.
//!
//! A walk has a connection of its own, since the client has no command for it.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddrV4;
use std::time::Duration;

use async_memcached::{Error, ErrorKind, Status};
use percent_encoding::percent_decode;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::errors::Failed;
use super::examine::Statistics;
use crate::backend::BackendErrorKind;
use crate::deadline::Deadline;
use crate::store::{Next, Time};
use crate::stores::meaning::Meaning;

/// More than any line has: a name of 250 bytes, each written as `%XX`, and some numbers.
const LONGEST_LINE: u64 = 4_096;

/// From here on, the walk through the hash table keeps nothing locked while it waits.
const WAITS_FOR_NOBODY: [u32; 3] = [1, 6, 19];

/// So many lines, each of some 900 bytes at most, go into the 128 KiB that the server collects before
/// it waits for its reader, and into what the connection itself holds.
const FEW: u64 = 200;

/// Where the other walk is used: how often, so that an item is not missing because it was read at
/// one moment, and with what pause between two of them.
const WALKS: usize = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// The names with this prefix among all items. Fails if they have not all been received by then.
pub(super) async fn names_like(
    server: SocketAddrV4,
    prefix: &[u8],
    by: Deadline,
    (of_it, time): (&Statistics, &Time),
) -> Result<BTreeSet<Vec<u8>>, Failed> {
    let stream = TcpStream::connect(server).await.map_err(Error::Connect)?;
    let mut lines = BufReader::new(stream);
    let (what, walks) = way(of_it);
    let mut names = BTreeSet::new();
    for walk in 0..walks {
        if walk > 0 {
            time.sleep(time.after(PAUSE)).await;
        }
        let command = format!("lru_crawler metadump {what}\r\n");
        let asked = lines.get_mut().write_all(command.as_bytes()).await;
        asked.map_err(Error::Io)?;
        collect(&mut lines, prefix, by, &mut names).await?;
    }
    Ok(names)
}

/// What to walk through, and how often.
fn way(of_it: &Statistics) -> (&'static str, usize) {
    let are_few = of_it.number("curr_items").is_some_and(|items| items <= FEW);
    let version = of_it.0.get("version").and_then(|version| numbers(version));
    match are_few || version >= Some(WAITS_FOR_NOBODY) {
        true => ("hash", 1),
        false => ("all", WALKS),
    }
}

/// Of `1.6.18`, or `1.6.18-rc1`.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let numbers = version.split(['.', '-']).take(3);
    let numbers: Vec<_> = numbers.map_while(|number| number.parse().ok()).collect();
    numbers.try_into().ok()
}

/// Reads the answer to one walk.
async fn collect(
    lines: &mut BufReader<TcpStream>,
    prefix: &[u8],
    by: Deadline,
    names: &mut BTreeSet<Vec<u8>>,
) -> Result<(), Failed> {
    let mut begun = false;
    loop {
        let line = line(lines).await.map_err(Error::Io)?;
        if let Some(item) = line.strip_prefix("key=") {
            begun = true;
            // Filtered here, since a cache may have millions of other items.
            let name = item.split(' ').next().unwrap_or_default();
            let name: Vec<u8> = percent_decode(name.as_bytes()).collect();
            if name.starts_with(prefix) {
                names.insert(name);
            }
            if by.has_passed() {
                let said = "it has too many items to list them all within the request timeout";
                let advice = "give the locks a server of their own, raise the timeout, or inspect \
                              locks one by one";
                let kind = BackendErrorKind::Unavailable;
                return Err(Failed::not_done(kind, said, advice));
            }
        } else if line == "END" {
            return Ok(());
        } else if let Some(why) = line.strip_prefix("BUSY ") {
            // The server does only one such walk at a time.
            let said = format!("it is listing its items for somebody else ({why})");
            let meaning = Meaning::unavailable(Next::Pause, "try again");
            return Err(Failed::NotDone(meaning, said));
        } else if begun {
            let said = ErrorKind::Generic("no item, and not the end of them".to_owned());
            return Err(Failed::unexpected_answer(&Status::Error(said)));
        } else {
            let advice = "start it without `-X` and with its LRU crawler, or inspect locks one by \
                          one";
            let kind = BackendErrorKind::Unsupported;
            return Err(Failed::not_done(kind, "it does not list its items", advice));
        }
    }
}

/// The next line, without its end.
async fn line(lines: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = Vec::new();
    lines
        .take(LONGEST_LINE)
        .read_until(b'\n', &mut line)
        .await?;
    match line.strip_suffix(b"\n") {
        Some(line) => {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            Ok(String::from_utf8_lossy(line).into_owned())
        }
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_waits_with_items_locked_is_not_made_to_wait() {
        for (version, items, way_of_it) in [
            ("1.6.18", "200", "hash"),
            ("1.6.18", "201", "all"),
            ("1.6.19", "1000000", "hash"),
            ("another", "1000000", "all"),
            ("another", "unknown", "all"),
        ] {
            let told = [("version", version), ("curr_items", items)];
            let told = told.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let (what, _) = way(&Statistics(told.into()));
            assert_eq!(what, way_of_it, "{version}, {items} items");
        }
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(numbers("1.6.18"), Some([1, 6, 18]));
        assert_eq!(numbers("1.6.40-rc1"), Some([1, 6, 40]));
        for text in ["1.6", "", "1.x.3", "one"] {
            assert_eq!(numbers(text), None, "{text}");
        }
        assert!(numbers("1.6.9") < Some(WAITS_FOR_NOBODY));
        assert!(numbers("1.10.0") > Some(WAITS_FOR_NOBODY));
    }
}
