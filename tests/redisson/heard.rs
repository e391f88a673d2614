//! What somebody hears who waits and is not dlock's.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};

/// A thread in Java, as Redisson names it.
pub(crate) const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:31";

/// Listens to a channel, as services from before 3.22 do in a cluster too.
pub(crate) async fn heard_on(server: &RedisServer, channel: &str) -> UnboundedReceiver<String> {
    let client = redis::Client::open(server.url()).expect("a URL");
    let channel = channel.to_owned();
    let (tells, mut messages) = unbounded_channel();
    // Until the server ends.
    std::thread::spawn(move || {
        let mut connection = client.get_connection().expect("a connection");
        let mut heard = connection.as_pubsub();
        heard.subscribe(channel).expect("a subscription");
        let _ = tells.send(String::new());
        while let Ok(message) = heard.get_message() {
            let _ = tells.send(message.get_payload().expect("text"));
        }
    });
    assert_eq!(within(HANG, messages.recv()).await.as_deref(), Some(""));
    messages
}

/// That a lock is free; or that a writer has gone, which is told to those who sleep, and then
/// to one who is about to.
pub(crate) async fn told(messages: &mut UnboundedReceiver<String>) {
    let mut message = within(HANG, messages.recv()).await;
    if message.as_deref() == Some("1") {
        message = within(HANG, messages.recv()).await;
    }
    assert_eq!(message.as_deref(), Some("0"));
}
