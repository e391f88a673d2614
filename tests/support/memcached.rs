//! A real `memcached` of the test's own.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::port::free_port;
use super::process::command;
use super::server::{Kind, Server};
use super::wait::{HANG, STEP};

pub(crate) type MemcachedServer = Server<Memcached>;

#[derive(Debug)]
pub(crate) struct Memcached {
    port: u16,
    /// The same again at each restart.
    options: Vec<&'static str>,
}

impl MemcachedServer {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// With options of `memcached`.
    pub(crate) async fn start_with(options: &[&'static str]) -> Self {
        let options = options.to_vec();
        Server::of(Memcached { port: 0, options }).await
    }
}

impl Kind for Memcached {
    const NAME: &'static str = "memcached";
    const PACKAGE: &'static str = "memcached";

    fn port(&self) -> u16 {
        self.port
    }

    fn take_ports(&mut self) {
        self.port = free_port();
    }

    fn command(&self, _: &Path) -> Command {
        let mut server = command("memcached");
        // As root it must be told whom to become.
        server
            .args(["-u", "nobody", "-l", "127.0.0.1", "-t", "2"])
            .args(["-p", &self.port.to_string()])
            .args(&self.options);
        server
    }

    async fn answers(&self, process: u32, _: &Path) -> Result<(), String> {
        match self.try_stat("pid", Duration::from_secs(2)) {
            Ok(answering) if answering == Some(process.into()) => Ok(()),
            Ok(answering) => Err(format!("process {answering:?} has answered")),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Memcached {
    pub(crate) fn url(&self) -> String {
        memcached_url(self.port)
    }

    /// Sends a line, as an operator would with `telnet`, and reads up to a line
    /// that begins with one of `ends`.
    pub(crate) fn ask(&self, line: &str, ends: &[&str]) -> Vec<String> {
        self.try_ask(line.as_bytes(), ends, HANG)
            .unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    fn try_ask(&self, line: &[u8], ends: &[&str], limit: Duration) -> io::Result<Vec<String>> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(limit))?;
        (&stream).write_all(&[line, b"\r\n"].concat())?;
        let mut lines = Vec::new();
        for line in BufReader::new(&stream).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
            let last = ends.iter().any(|end| line.starts_with(end));
            lines.push(line);
            if last {
                return Ok(lines);
            }
        }
        Err(io::Error::other(format!("the answer ended: {lines:?}")))
    }

    /// Sends all of this, and reads all that is said to it.
    pub(crate) fn talk(&self, lines: &[u8]) -> Vec<u8> {
        let talk = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            stream.set_read_timeout(Some(HANG))?;
            stream.write_all(&[lines, b"quit\r\n"].concat())?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).map(|_| answer)
        };
        talk().expect("our own memcached")
    }

    fn try_stat(&self, name: &str, limit: Duration) -> io::Result<Option<u64>> {
        let stats = self.try_ask(b"stats", &["END"], limit)?;
        let mut values = stats.iter().filter_map(|line| {
            let (found, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
            (found == name).then(|| value.parse().ok())?
        });
        Ok(values.next())
    }

    /// A number of the server's own statistics.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let value = self.try_stat(name, HANG).ok().flatten();
        value.unwrap_or_else(|| panic!("memcached says nothing of {name}"))
    }

    /// Whether there was such an item, which is gone now.
    pub(crate) fn delete(&self, name: &str) -> bool {
        let answer = self.ask(&format!("delete {name}"), &["DELETED", "NOT_FOUND"]);
        answer == ["DELETED"]
    }

    /// The names of all items that have not expired, percent-encoded.
    pub(crate) fn items(&self) -> BTreeSet<String> {
        let lines = loop {
            let lines = self.ask("lru_crawler metadump hash", &["END", "BUSY"]);
            if lines.last().is_some_and(|last| last == "END") {
                break lines;
            }
        };
        let names = lines.iter().filter_map(|line| {
            let (name, _) = line.strip_prefix("key=")?.split_once(' ')?;
            Some(name.to_owned())
        });
        names.collect()
    }

    /// What is looked at from now on.
    pub(crate) fn log(&self) -> Log {
        Log::follow(self.port)
    }
}

/// Where clients find the server behind a port of this machine.
pub(crate) fn memcached_url(port: u16) -> String {
    format!("memcached://127.0.0.1:{port}")
}

/// The server's own log of what clients read and write (`watch`): memcached
/// keeps no queue that shows who waits, but who waits looks again and again.
#[derive(Debug)]
pub(crate) struct Log {
    stream: TcpStream,
    reader: Option<JoinHandle<()>>,
    seen: Arc<Mutex<Vec<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    name: String,
    connection: u32,
    wrote: bool,
}

/// Within it, who waits looks twice.
const TWO_LOOKS: Duration = Duration::from_millis(700);

impl Log {
    fn follow(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("our own memcached");
        (&stream)
            .write_all(b"watch fetchers mutations\r\n")
            .expect("our own memcached");
        let seen = Arc::<Mutex<Vec<Entry>>>::default();
        let reader = {
            let (seen, stream) = (Arc::clone(&seen), stream.try_clone().expect("a socket"));
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if let Some(entry) = Entry::read(&line) {
                        let mut seen = seen.lock().expect("the log");
                        seen.retain(|entry| entry.at.elapsed() < 2 * TWO_LOOKS);
                        seen.push(entry);
                    }
                }
            })
        };
        Self {
            stream,
            reader: Some(reader),
            seen,
        }
    }

    /// How many processes wait for the lock of this name. Each has a connection
    /// of its own to look over, and does not write to the item meanwhile.
    pub(crate) fn waiters(&self, name: &str) -> usize {
        let name = encoded(name);
        let seen = self.seen.lock().expect("the log");
        let mut looks: HashMap<u32, (usize, bool)> = HashMap::new();
        for entry in seen.iter() {
            if entry.name == name && entry.at.elapsed() < TWO_LOOKS {
                let (count, wrote) = looks.entry(entry.connection).or_default();
                *count += 1;
                *wrote |= entry.wrote;
            }
        }
        let waiting = |&&(count, wrote): &&(usize, bool)| count >= 2 && !wrote;
        looks.values().filter(waiting).count()
    }
}

/// As memcached writes names in its log and its lists.
fn encoded(name: &str) -> String {
    name.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Entry {
    /// `ts=… gid=… type=item_get key=… status=… clsid=… cfd=… size=…`
    fn read(line: &str) -> Option<Self> {
        let mut fields: HashMap<&str, &str> = line
            .split(' ')
            .filter_map(|field| field.split_once('='))
            .collect();
        Some(Self {
            at: Instant::now(),
            wrote: match fields.remove("type")? {
                "item_get" => false,
                "item_store" => true,
                _ => return None,
            },
            name: fields.remove("key")?.to_owned(),
            connection: fields.remove("cfd")?.parse().ok()?,
        })
    }
}
