//! A flash sale: thousands of orders hit a few articles, whose stock is in a
//! store that can only be read and written. One attribute keeps two buyers
//! from reading the same last piece, in one process or in many.
//!
//! ```sh
//! cargo run --example flash_sale                          # tasks of one process
//! cargo run --example flash_sale -- --without-lock        # … who oversell
//! cargo run --example flash_sale -- --store redis://127.0.0.1:6379 --processes 4
//! ```
//!
//! Kill or pause one of the processes while it runs: nothing is sold twice.

mod arguments;
#[cfg(feature = "redis")]
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
use report::{Outcome, Receipt, Report};
use shop::{Shop, ShopError};

/// Sells one piece if there is one left. Of all tasks and processes, one at a
/// time does this for the same article.
#[distributed_lock(key = "stock:<order.sku>", ttl = "3s", timeout = "30s")]
async fn sell(shop: &dyn Shop, order: &Order) -> Result<Receipt, SaleError> {
    sell_unprotected(shop, order).await
}

/// The same for those who like to live dangerously.
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

/// Takes orders until there are none, so many at once.
async fn serve(
    shop: &Arc<dyn Shop>,
    arguments: &Arguments,
    process: usize,
) -> Result<(), ShopError> {
    let mut tasks = JoinSet::new();
    for _ in 0..arguments.tasks {
        let (shop, orders, locked) = (Arc::clone(shop), arguments.orders, arguments.locked);
        tasks.spawn(async move {
            loop {
                let number = shop.next_order().await?;
                if number >= orders {
                    return Ok(());
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
                shop.book(&receipt).await?;
            }
        });
    }
    tasks.join_all().await.into_iter().collect()
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn run(arguments: Arguments) -> Result<ExitCode, AnyError> {
    let config = match &arguments.store {
        Store::Memory => Config::default(),
        #[cfg(feature = "redis")]
        Store::Redis(url) => Config::from_url(url)?,
    };
    dlock::init(config.namespace(&*arguments.sale)).await?;
    let shop = shop::open(&arguments).await?;

    let start = Instant::now();
    let pids = match (&arguments.store, arguments.process) {
        (Store::Memory, _) => {
            let follow = report::follow(&*shop, arguments.orders);
            tokio::try_join!(serve(&shop, &arguments, 0), follow)?;
            vec![std::process::id()]
        }
        // The process that starts the others.
        #[cfg(feature = "redis")]
        (Store::Redis(_), None) => processes::run(&*shop, &arguments).await?,
        // One of the others.
        #[cfg(feature = "redis")]
        (Store::Redis(_), Some(process)) => {
            serve(&shop, &arguments, process).await?;
            dlock::shutdown().await;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let report = Report::new(&arguments, &shop.close().await?, start.elapsed(), &pids);
    // Whoever reads it may have had enough.
    let _ = write!(std::io::stdout(), "{report}");
    Ok(if arguments.locked && report.oversold() > 0 {
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
