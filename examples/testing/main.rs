//! How annotated code is tested: an importer, and its tests beside it.
//!
//! ```sh
//! cargo run --example testing      # a batch that was delivered to two copies at once
//! cargo test --example testing     # what could go wrong, without a server
//! ```

mod importer;
mod ledger;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use dlock::Config;

use importer::{Batch, ImportError, Importer};
use ledger::Ledger;

#[tokio::main]
async fn main() -> Result<(), ImportError> {
    dlock::init(Config::default()).await?;
    let ledger = Arc::new(Ledger::new(Duration::from_millis(20)));
    let importer = Importer::new(Arc::clone(&ledger));
    let batch = Batch::new("2026-11-21", 60);

    let (one, other) = tokio::join!(importer.import(&batch), importer.import(&batch));
    println!("one copy of the service:  {:?}", one?);
    println!("the other copy:           {:?}", other?);
    println!("rows in the ledger:       {}", ledger.rows(&batch.id).len());
    println!("batches cleaned up:       {}", importer.clean_up().await);
    dlock::shutdown().await;
    Ok(())
}
