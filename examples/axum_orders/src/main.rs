//! The service: its command line, its start and its end.

mod metrics;
#[path = "../../options/mod.rs"]
mod options;
mod probes;

use std::error::Error;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum_orders::bank::{Bank, InMemory, InRedis};
use axum_orders::table::{Table, memory, redis};
use axum_orders::{Shop, router};
use dlock::Config;
use lexopt::prelude::*;
use options::value;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const USAGE: &str = "\
Usage: cargo run -p axum_orders -- [options]
  --listen ADDRESS  where to serve (127.0.0.1:3000; port 0 picks a free one)
  --store URL       memory: or redis://host:port (else $DLOCK_URL, else memory:)
  --shop NAME       which shop it is a copy of (mugs)
  --stock N         pieces of each article in a new shop (100)
  --bank-ms N       how long the bank takes for a charge (50)
  --payments N      how many of one customer at once, in all copies (64)

Try: curl -i localhost:3000/orders -H 'content-type: application/json' \\
          -d '{\"sku\":\"blue-mug\",\"quantity\":1}'
     curl -i -X POST localhost:3000/orders/1/payment -H 'x-customer: 7'
     curl -i -X DELETE localhost:3000/orders/1
     curl localhost:3000/books";

const ARTICLES: [&str; 4] = ["blue-mug", "red-mug", "green-mug", "tea-pot"];

/// How long the store of the locks may be silent before it counts as down.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(1_500);

/// How long the requests under way have when the service is told to stop.
const GRACE: Duration = Duration::from_secs(20);

type AnyError = Box<dyn Error + Send + Sync>;

struct Arguments {
    listen: SocketAddr,
    store: String,
    shop: String,
    stock: u64,
    bank_takes: Duration,
    payments: u32,
}

impl Arguments {
    /// None if the user asks what there is to choose.
    fn parse() -> Result<Option<Self>, AnyError> {
        let url = std::env::var("DLOCK_URL").ok();
        let mut arguments = Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 3000)),
            store: url
                .filter(|url| !url.is_empty())
                .unwrap_or("memory:".into()),
            shop: "mugs".to_owned(),
            stock: 100,
            bank_takes: Duration::from_millis(50),
            payments: 64,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Long("listen") => arguments.listen = value(&mut parser, "--listen")?,
                Long("store") => arguments.store = value(&mut parser, "--store")?,
                Long("shop") => arguments.shop = value(&mut parser, "--shop")?,
                Long("stock") => arguments.stock = value(&mut parser, "--stock")?,
                Long("bank-ms") => {
                    arguments.bank_takes = Duration::from_millis(value(&mut parser, "--bank-ms")?);
                }
                Long("payments") => arguments.payments = value(&mut parser, "--payments")?,
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(Some(arguments))
    }
}

async fn open(arguments: &Arguments) -> Result<Shop, AnyError> {
    let (url, name, takes) = (&arguments.store, &arguments.shop, arguments.bank_takes);
    let (table, bank): (Arc<dyn Table>, Arc<dyn Bank>) = if url == "memory:" {
        let table = memory::Table::default();
        (Arc::new(table), Arc::new(InMemory::new(takes)))
    } else {
        let table = redis::Table::connect(url, name).await?;
        let bank = InRedis::connect(url, name, takes).await?;
        (Arc::new(table), Arc::new(bank))
    };
    let shop = Shop::new(name, table, bank).payments_at_once(arguments.payments);
    for sku in ARTICLES {
        shop.stock_up(sku, arguments.stock).await?;
    }
    Ok(shop)
}

/// Resolves when the service is told to stop, by Ctrl-C or by its supervisor.
async fn told_to_stop() -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

async fn run(arguments: Arguments) -> Result<(), AnyError> {
    let metrics = metrics::route()?;
    // Three of them fit into the ttl of its locks, so that one silent connection costs none.
    let config = Config::from_url(&arguments.store)?.request_timeout(REQUEST_TIMEOUT);
    dlock::init(config).await?;
    let shop = Arc::new(open(&arguments).await?);
    let listener = TcpListener::bind(arguments.listen).await?;
    let address = listener.local_addr()?;

    let stop = CancellationToken::new();
    let routes = router(Arc::clone(&shop))
        .merge(metrics)
        .merge(probes::routes());
    let server =
        axum::serve(listener, routes).with_graceful_shutdown(stop.clone().cancelled_owned());
    let server = tokio::spawn(server.into_future());
    writeln!(std::io::stdout(), "listening on http://{address}")?;
    told_to_stop().await?;

    // In this order: no new requests, then the end of those under way and of
    // payments that nobody waits for, then their locks.
    stop.cancel();
    let requests = async {
        server.await??;
        shop.finish_payments().await;
        Ok::<_, AnyError>(())
    };
    match timeout(GRACE, requests).await {
        Ok(ended) => ended?,
        Err(_) => tracing::warn!("requests that take longer than {GRACE:?} are cut short"),
    }
    // Those of a store that does not answer come back when their ttl has passed.
    if timeout(GRACE, dlock::shutdown()).await.is_err() {
        tracing::warn!("locks that were not given back within {GRACE:?} are left to their ttl");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let arguments = match Arguments::parse() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("axum_orders: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("axum_orders: {error}");
            ExitCode::from(2)
        }
    }
}
