//! `dlock top --metrics` beside a service that exports its numbers as services do.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::example::built;
use crate::screen::Screen;
use crate::support::calm::unless_it_stands_still;
use crate::support::process::command;
use crate::support::program::Program;
use crate::{printed, redis};

/// The shop's lock of an article, and that of an order.
const OF_ARTICLE: &str = "<shop.name>:stock:<wanted.sku>";
const OF_ORDER: &str = "<shop.name>:order:<id>";

/// The example `axum_orders`, whose bank takes ten minutes for a payment.
fn service(url: &str) -> Command {
    // With what these tests were built with, so that little is left to build.
    // Its tests need the service, and are built with the same features of what it uses as these.
    let what = match cfg!(feature = "etcd") {
        true => &["--test", "shop", "--workspace", "--all-features"][..],
        false => &["--test", "shop", "-p", "axum_orders"],
    };
    let program = built(what).join("debug/axum_orders");
    let mut service = command(program);
    let arguments = ["--listen", "127.0.0.1:0", "--bank-ms", "600000"];
    service.args(arguments).args(["--stock", "1000000"]);
    service.env("DLOCK_URL", url);
    service
}

/// Sends a request, and reads the answer.
fn ask(address: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the service");
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = String::new();
    let written = stream.write_all(request.as_bytes());
    let read = written.and_then(|()| stream.read_to_string(&mut answer));
    read.map(|_| answer).unwrap_or_default()
}

fn places(address: &str) {
    let placed = ask(address, "/orders", r#"{"sku":"blue-mug","quantity":1}"#);
    assert!(placed.starts_with("HTTP/1.1 201"), "{placed}");
}

/// Orders one mug after the other until it is dropped.
struct Customer(Arc<AtomicBool>);

impl Customer {
    fn of(address: &str) -> Self {
        let goes = Arc::new(AtomicBool::new(true));
        let (stays, address) = (goes.clone(), address.to_owned());
        thread::spawn(move || {
            while stays.load(Ordering::Relaxed) {
                ask(&address, "/orders", r#"{"sku":"blue-mug","quantity":1}"#);
            }
        });
        Self(goes)
    }
}

impl Drop for Customer {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The columns behind the name.
fn row(text: &str, name: &str) -> Vec<String> {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    let columns = found.unwrap_or_default().split_whitespace();
    columns.map(ToOwned::to_owned).collect()
}

/// A third of the time after which the service refuses an order, or a payment, that Redis has not
/// answered.
const IN_TIME: Duration = Duration::from_millis(500);

#[tokio::test]
async fn what_a_real_service_counts_is_shown() {
    unless_it_stands_still(IN_TIME, async || {
        let server = redis().await;
        let url = server.url();
        let service = Program::start(service(&url));
        let address = printed(&service, "listening on http://").await;
        places(&address);
        // Holds its lock until the bank has answered.
        let payer = address.clone();
        thread::spawn(move || ask(&payer, "/orders/1/payment", ""));
        let _customer = Customer::of(&address);

        let metrics = format!("http://{address}/metrics");
        let arguments = ["top", "--interval", "200ms", "--metrics", &metrics];
        let screen = Screen::of_tool(&url, &arguments, (24, 120), &[]);
        screen.shows("mugs:order:1 ").await;
        screen.types("/mugs:order:1\r");
        screen.shows(&format!("all of {OF_ORDER}: ")).await;
        screen.types("\t");
        let is_time = |text: &str| text.ends_with('s') && text.starts_with(char::is_numeric);
        let counted = |text: &str| {
            let (of_article, of_order) = (row(text, OF_ARTICLE), row(text, OF_ORDER));
            // Held, waiting, grants a second, wait, p99, hold, p99, lost.
            of_article.len() == 8
                && of_article[2].parse::<f64>().is_ok_and(|rate| rate > 0.0)
                && is_time(&of_article[3])
                && is_time(&of_article[5])
                && of_article[4].starts_with('≤')
                && of_article[7] == "0"
                && of_order.len() == 8
                && (&*of_order[0], &*of_order[7]) == ("1", "0")
                && text.contains("1 service: ")
        };
        screen.until("its numbers", counted).await;

        // The payment learns with its next renewal that its lock has gone.
        let gone: u32 = server.command(&["DEL", "dlock:{mugs:order:1}"]).await;
        assert_eq!(gone, 1, "nobody held it");
        let lost = |text: &str| {
            let of_order = row(text, OF_ORDER);
            of_order.last().is_some_and(|lost| lost == "1") && of_order[0] == "0"
        };
        screen.until("the loss", lost).await;
    })
    .await;
}
