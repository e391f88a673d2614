use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::FromRedisValue;

/// A `redis-server` of a test's own, which ends with it.
pub(crate) struct Server {
    pub(crate) port: u16,
    folder: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// With further settings for the server.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::temp_dir().join(format!(
            "dlock-redis-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir_all(&folder).expect("a folder for the server");
        let arguments = arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect();
        let mut server = Self {
            port: 0,
            folder,
            arguments,
            child: None,
        };
        // Another process may take a free port before the server does.
        for _ in 0..20 {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
        panic!("redis-server does not start; is it installed?");
    }

    /// Whether it came up.
    fn launch(&mut self) -> bool {
        let child = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(&self.folder)
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let process = child.id();
        self.child = Some(child);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if let Some(info) = self.info() {
                // Not some other server on that port.
                return info.contains(&format!("process_id:{process}\r"));
            }
            let child = self.child.as_mut().expect("just started");
            if child.try_wait().expect("the state of the child").is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// `None` while nobody listens. An error answer counts as an answer.
    fn info(&self) -> Option<String> {
        let client = redis::Client::open(("127.0.0.1", self.port)).ok()?;
        let mut connection = client.get_connection().ok()?;
        match redis::cmd("INFO").arg("server").query(&mut connection) {
            Ok(info) => Some(info),
            Err(error) if error.code() == Some("LOADING") => None,
            // It wants a password, so the pid cannot be seen.
            Err(error) if error.code() == Some("NOAUTH") => {
                Some(format!("process_id:{}\r", self.pid()))
            }
            Err(_) => None,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running server").id()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// On the same port, with what it had saved.
    pub(crate) fn restart(&mut self) {
        self.kill();
        for _ in 0..50 {
            if self.launch() {
                return;
            }
        }
        panic!("redis-server does not come back on port {}", self.port);
    }

    /// One command, as an operator would type it.
    pub(crate) fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_run(command)
            .unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    pub(crate) fn try_run<T: FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(("127.0.0.1", self.port))?;
        let mut connection = client.get_connection()?;
        let mut line = redis::cmd(command[0]);
        for argument in &command[1..] {
            line.arg(*argument);
        }
        line.query(&mut connection)
    }

    pub(crate) fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(("127.0.0.1", self.port)).expect("an address");
        client.get_connection().expect("a connection")
    }

    /// The names of all keys, in order.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.run(&["KEYS", "*"]);
        keys.sort();
        keys
    }

    /// How often it has run a command.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let info: String = self.run(&["INFO", "commandstats"]);
        let stats = info
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
        stats.map_or(0, calls)
    }

    /// How many commands it has run, those inside of scripts included, without
    /// those that look at it.
    pub(crate) fn commands(&self) -> u64 {
        let info: String = self.run(&["INFO", "commandstats"]);
        info.lines()
            .filter(|line| !line.contains("_info:") && !line.contains("_client|setinfo"))
            .map(calls)
            .sum()
    }
}

/// The number of calls in a line of `INFO commandstats`.
fn calls(line: &str) -> u64 {
    line.split_once("calls=")
        .and_then(|(_, rest)| rest.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}
