//! A flash sale: thousands of orders hit a few articles, whose stock is in a
//! store that can only be read and written. One attribute keeps two buyers
//! from reading the same last piece, in one process or in many.
//!
//! ```sh
//! cargo run --example flash_sale                          # tasks of one process
//! cargo run --example flash_sale -- --without-lock        # … who oversell
//! DLOCK_TTL=3s DLOCK_REQUEST_TIMEOUT=1s cargo run --example flash_sale -- --store redis://127.0.0.1:6379 --processes 4
//! ```
//!
//! Kill or pause one of the processes of the last one while it runs: nothing is sold twice. The
//! ttl is short there, so that you see the sale go on; a service has no reason to be below the 30
//! seconds of the default.

mod arguments;
#[path = "../options/mod.rs"]
mod options;
mod processes;
mod report;
mod shop;

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::{Config, LockError, distributed_lock};
use tokio::task::JoinSet;

use arguments::{Arguments, Store};
use report::{LastSeen, Outcome, Receipt, Report};
use shop::{Progress, Shop, ShopError, insist};

/// Sells one piece if there is one left. Of all tasks and processes, one at a
/// time does this for the same article.
#[distributed_lock(key = "stock:<order.sku>")]
async fn sell(shop: &dyn Shop, order: &Order) -> Result<Receipt, SaleError> {
    sell_unprotected(shop, order).await
}

/// Sells without the lock, as `--without-lock` asks for: this oversells.
async fn sell_unprotected(shop: &dyn Shop, order: &Order) -> Result<Receipt, SaleError> {
    let waited = order.placed.elapsed();
    // Sent along, it lets the shop refuse a process that was paused until
    // somebody else had the lock.
    let token = dlock::current().map(|held| held.token());

    let left = shop.stock(order.sku, token).await?;
    let Some(left) = left.checked_sub(1) else {
        return Ok(order.receipt(Outcome::Refused, waited));
    };
    // Whoever reads the stock now sells the same piece.
    let receipt = order.receipt(Outcome::Sold, waited);
    shop.set_stock(left, token, &receipt).await?;
    Ok(receipt)
}

/// What somebody wants to buy.
struct Order {
    number: u64,
    sku: usize,
    /// The process that has taken the order.
    process: usize,
    placed: Instant,
}

impl Order {
    fn receipt(&self, outcome: Outcome, waited: Duration) -> Receipt {
        Receipt {
            order: self.number,
            sku: self.sku,
            process: self.process,
            outcome,
            waited,
        }
    }
}

/// Why an order was neither filled nor refused.
enum SaleError {
    Lock(LockError),
    Shop(ShopError),
}

impl From<LockError> for SaleError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<ShopError> for SaleError {
    fn from(error: ShopError) -> Self {
        Self::Shop(error)
    }
}

impl fmt::Display for SaleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Shop(error) => error.fmt(f),
        }
    }
}

/// Takes orders, so many at once, until there are none or it is told to stop.
async fn serve(
    shop: &Arc<dyn Shop>,
    arguments: &Arguments,
    process: usize,
    stop: impl Future<Output = ()>,
) -> Result<(), AnyError> {
    let mut tasks = JoinSet::new();
    for _ in 0..arguments.tasks {
        let (shop, orders, locked) = (Arc::clone(shop), arguments.orders, arguments.locked);
        tasks.spawn(async move {
            loop {
                let number = insist(|| shop.next_order()).await?;
                if number >= orders {
                    return Ok::<_, ShopError>(());
                }
                let sku = shop::sku_of(number);
                let order = Order {
                    number,
                    sku,
                    process,
                    placed: Instant::now(),
                };
                let answer = if locked {
                    sell(&*shop, &order).await
                } else {
                    sell_unprotected(&*shop, &order).await
                };
                let receipt = answer.unwrap_or_else(|error| {
                    eprintln!("order {number} was not served: {error}");
                    order.receipt(Outcome::Failed, order.placed.elapsed())
                });
                insist(|| shop.book(&receipt)).await?;
            }
        });
    }
    let all_ended = async {
        let mut first_error = Ok(());
        while let Some(ended) = tasks.join_next().await {
            first_error = first_error.and(ended?);
        }
        Ok(first_error?)
    };
    tokio::select! {
        ended = all_ended => return ended,
        () = stop => {}
    }
    // Waits until the tasks have ended, so that the shutdown that follows waits for their locks
    // too.
    tasks.shutdown().await;
    Ok(())
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn run(arguments: Arguments) -> Result<ExitCode, AnyError> {
    let config = match &arguments.store {
        Store::Memory => Config::default(),
        Store::Shared(url) => Config::from_env_at(url)?,
    };
    let patience = config.configured_ttl() + processes::MARGIN;
    dlock::init(config.namespace(&*arguments.sale)).await?;
    if let Store::Memory = arguments.store {
        eprintln!(
            "flash_sale: the stock and the locks are in the memory of this process; --store redis://… \
             shares them"
        );
    }
    let shop = shop::open(&arguments).await?;

    let start = Instant::now();
    let mut seen = Progress::default();
    let (pids, ended) = match (&arguments.store, arguments.process) {
        (Store::Memory, _) => {
            let follow = report::follow(&*shop, arguments.orders, &mut seen);
            let follow = async { Ok(follow.await?) };
            let serve = serve(&shop, &arguments, 0, std::future::pending());
            let ended = tokio::try_join!(serve, follow).map(drop);
            (vec![std::process::id()], ended)
        }
        // The process that starts the others.
        (Store::Shared(_), None) => processes::run(&*shop, &arguments, patience, &mut seen).await?,
        // One of the others.
        (Store::Shared(_), Some(process)) => {
            serve(&shop, &arguments, process, processes::parent_ended()).await?;
            dlock::shutdown().await;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let receipts = shop::close(&*shop, &arguments).await;
    // Whoever reads it may have had enough.
    let mut out = std::io::stdout();
    let mut oversold = 0;
    match &receipts {
        Ok(receipts) => {
            let report = Report::new(&arguments, receipts, start.elapsed(), &pids);
            oversold = report.oversold();
            let _ = write!(out, "{report}");
        }
        Err(_) => {
            let _ = write!(out, "{}", LastSeen(&arguments, seen));
        }
    }
    if let Err(error) = ended.and(receipts.map_err(AnyError::from)) {
        eprintln!("flash_sale: the sale ended early: {error}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if arguments.locked && oversold > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::parse() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{}", arguments::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("flash_sale: {error}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    run(arguments).await.unwrap_or_else(|error| {
        eprintln!("flash_sale: {error}");
        ExitCode::from(2)
    })
}
