//! What became of the orders, and how it is shown.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::arguments::Arguments;
use crate::shop::{ARTICLES, Progress, Shop, ShopError, insist, stock_for};

/// What became of one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) order: u64,
    pub(crate) sku: usize,
    pub(crate) process: usize,
    pub(crate) outcome: Outcome,
    /// How long it waited for its turn.
    pub(crate) waited: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sold,
    /// None was left.
    Refused,
    /// No lock, or no shop.
    Failed,
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Outcome::Sold => "sold",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
        };
        let Self {
            order,
            sku,
            process,
            waited,
            ..
        } = self;
        write!(
            f,
            "{outcome} {order} {sku} {process} {}",
            waited.as_micros()
        )
    }
}

impl FromStr for Receipt {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (outcome, numbers) = text.split_once(' ').ok_or(())?;
        let outcome = match outcome {
            "sold" => Outcome::Sold,
            "refused" => Outcome::Refused,
            "failed" => Outcome::Failed,
            _ => return Err(()),
        };
        let numbers: Vec<u64> = numbers
            .split(' ')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|_| ())?;
        let [order, sku, process, waited] = numbers[..] else {
            return Err(());
        };
        let index = |number: u64| usize::try_from(number).map_err(|_| ());
        let waited = Duration::from_micros(waited);
        Ok(Self {
            order,
            sku: index(sku)?,
            process: index(process)?,
            outcome,
            waited,
        })
    }
}

/// Moves a bar with the book of the shop, until every order is in it.
/// What it last saw is in `seen`, also when the shop fails.
pub(crate) async fn follow(
    shop: &dyn Shop,
    orders: u64,
    seen: &mut Progress,
) -> Result<(), ShopError> {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} orders, {eta} left")
        .expect("a valid template");
    let bar = ProgressBar::new(orders).with_style(style);
    loop {
        *seen = insist(|| shop.progress()).await?;
        bar.set_position(seen.booked);
        if seen.booked >= orders {
            bar.finish();
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What there is to say when the book cannot be read.
pub(crate) struct LastSeen<'a>(pub(crate) &'a Arguments, pub(crate) Progress);

impl fmt::Display for LastSeen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(arguments, Progress { booked, sold }) = self;
        let stock = stock_for(arguments.orders) * ARTICLES as u64;
        writeln!(f, "\nwhen last seen")?;
        writeln!(f, "  orders          {:>8}", arguments.orders)?;
        writeln!(f, "  served          {booked:>8}")?;
        writeln!(f, "  sold            {sold:>8}   of {stock} in stock")
    }
}

/// The sums at the end.
pub(crate) struct Report {
    orders: u64,
    stock: u64,
    sold: [u64; ARTICLES],
    refused: u64,
    failed: u64,
    shares: Vec<(u32, u64)>,
    waits: Vec<Duration>,
    took: Duration,
    locked: bool,
}

impl Report {
    /// `pids` are those of the processes that shared the sale.
    pub(crate) fn new(
        arguments: &Arguments,
        receipts: &[Receipt],
        took: Duration,
        pids: &[u32],
    ) -> Self {
        let count = |outcome| receipts.iter().filter(|one| one.outcome == outcome).count() as u64;
        let served_by =
            |process| receipts.iter().filter(|one| one.process == process).count() as u64;
        let sold = receipts.iter().filter(|one| one.outcome == Outcome::Sold);
        let mut waits: Vec<_> = receipts.iter().map(|one| one.waited).collect();
        waits.sort_unstable();
        Self {
            orders: arguments.orders,
            stock: stock_for(arguments.orders),
            sold: sold.fold([0; ARTICLES], |mut sold, one| {
                sold[one.sku] += 1;
                sold
            }),
            refused: count(Outcome::Refused),
            failed: count(Outcome::Failed),
            shares: pids
                .iter()
                .enumerate()
                .map(|(nr, &pid)| (pid, served_by(nr)))
                .collect(),
            waits,
            took,
            locked: arguments.locked,
        }
    }

    /// Pieces that were sold and not there.
    pub(crate) fn oversold(&self) -> u64 {
        self.sold
            .iter()
            .map(|sold| sold.saturating_sub(self.stock))
            .sum()
    }

    fn sold(&self) -> u64 {
        self.sold.iter().sum()
    }

    /// Taken by a process that died before they were in the book.
    fn lost(&self) -> u64 {
        self.orders
            .saturating_sub(self.sold() + self.refused + self.failed)
    }

    fn wait(&self, percent: usize) -> Duration {
        let last = self.waits.len().saturating_sub(1);
        self.waits
            .get(last * percent / 100)
            .copied()
            .unwrap_or_default()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stock = self.stock * ARTICLES as u64;
        let rate = self.sold() as f64 / self.took.as_secs_f64();
        let how = if self.locked {
            "with the lock"
        } else {
            "WITHOUT the lock"
        };
        writeln!(f, "\n{how}, in {:.1?}", self.took)?;
        writeln!(f, "  orders          {:>8}", self.orders)?;
        writeln!(
            f,
            "  sold            {:>8}   of {stock} in stock",
            self.sold()
        )?;
        writeln!(f, "  refused         {:>8}", self.refused)?;
        if self.failed > 0 {
            writeln!(
                f,
                "  failed          {:>8}   the lock or the shop gave an error",
                self.failed
            )?;
        }
        if self.lost() > 0 {
            writeln!(
                f,
                "  lost            {:>8}   with a process that died",
                self.lost()
            )?;
        }
        writeln!(f, "  oversold        {:>8}", self.oversold())?;
        writeln!(f, "  sales a second  {rate:>8.0}")?;
        writeln!(f, "  wait p50        {:>8.1?}", self.wait(50))?;
        writeln!(f, "  wait p99        {:>8.1?}", self.wait(99))?;
        for (number, (pid, served)) in self.shares.iter().enumerate() {
            let share = 100.0 * *served as f64 / self.orders as f64;
            writeln!(
                f,
                "  process {:<7} {served:>8}   {share:.0}% of the orders, pid {pid}",
                number + 1
            )?;
        }
        match (self.oversold(), self.locked) {
            (0, _) => match self.failed + self.lost() {
                0 => writeln!(f, "Nothing was sold twice."),
                1 => writeln!(f, "Nothing was sold twice; one order was not served."),
                unserved => {
                    writeln!(
                        f,
                        "Nothing was sold twice; {unserved} orders were not served."
                    )
                }
            },
            (pieces, true) => writeln!(f, "BROKEN: {pieces} pieces were sold that were not there."),
            (pieces, false) => writeln!(f, "{pieces} buyers wait for a piece that is not there."),
        }
    }
}
