//! A walk through the names of all items of the server.
//!
//! The walk that the client knows (`lru_crawler metadump all`) skips every item that is read at
//! that moment, so a lock for which many wait was missing in most lists. The one through the
//! server's hash table (`hash`) skips none. It has a connection of its own, since the client has
//! no command for it. (`item_crawl_hash` in the server's `crawler.c`.)

use std::io;
use std::net::SocketAddrV4;

use async_memcached::{Error, ErrorKind, Status};
use percent_encoding::percent_decode;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::errors::Failed;
use crate::backend::BackendErrorKind;
use crate::deadline::Deadline;
use crate::store::Next;
use crate::stores::meaning::Meaning;

/// More than any line has: a name of 250 bytes, each written as `%XX`, and some numbers.
const LONGEST_LINE: u64 = 4_096;

/// The names with this prefix among all items. Fails if they have not all been received by then.
pub(super) async fn names_like(
    server: SocketAddrV4,
    prefix: &[u8],
    by: Deadline,
) -> Result<Vec<Vec<u8>>, Failed> {
    let mut stream = TcpStream::connect(server).await.map_err(Error::Connect)?;
    let asked = stream.write_all(b"lru_crawler metadump hash\r\n").await;
    asked.map_err(Error::Io)?;
    let mut lines = BufReader::new(stream);
    let mut names = Vec::new();
    let mut begun = false;
    loop {
        let line = line(&mut lines).await.map_err(Error::Io)?;
        if let Some(item) = line.strip_prefix("key=") {
            begun = true;
            // Filtered here, since a cache may have millions of other items.
            let name = item.split(' ').next().unwrap_or_default();
            let name: Vec<u8> = percent_decode(name.as_bytes()).collect();
            if name.starts_with(prefix) {
                names.push(name);
            }
            if by.has_passed() {
                let said = "it has too many items to list them all within the request timeout";
                let advice = "give the locks a server of their own, raise the timeout, or inspect \
                              locks one by one";
                let kind = BackendErrorKind::Unavailable;
                return Err(Failed::not_done(kind, said, advice));
            }
        } else if line == "END" {
            return Ok(names);
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
