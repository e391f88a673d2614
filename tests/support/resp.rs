//! The Redis protocol, as a server speaks it that is none.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufStream};
use tokio::net::TcpStream;

/// The words of the next command.
pub(crate) async fn command(stream: &mut BufStream<TcpStream>) -> Option<Vec<String>> {
    let count = line(stream, '*').await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; line(stream, '$').await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Some(words)
}

async fn line(stream: &mut BufStream<TcpStream>, start: char) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(start)?.parse().ok()
}

/// As a server with nothing in it answers.
pub(crate) fn honest(words: &[String]) -> Vec<u8> {
    let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let said = match words[0].as_str() {
        "HELLO" => "%3\r\n+server\r\n+redis\r\n+version\r\n+7.2.4\r\n+proto\r\n:3\r\n".to_owned(),
        "SUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "SUNSUBSCRIBE" => {
            let kind = words[0].to_lowercase();
            format!(">3\r\n{}{}:1\r\n", text(&kind), text(&words[1]))
        }
        "EVAL" | "EVALSHA" => ":1700000000000000\r\n".to_owned(),
        "INCRBY" => ":1700000000000064\r\n".to_owned(),
        "CONFIG" => "%0\r\n".to_owned(),
        "ROLE" => "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_owned(),
        "DEL" => ":1\r\n".to_owned(),
        "GET" => "_\r\n".to_owned(),
        "SCAN" => "*2\r\n$1\r\n0\r\n*0\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    };
    said.into_bytes()
}
