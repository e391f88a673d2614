//! Processes of one machine that take turns, without a server.
//!
//! ```text
//! mkdir -p locks
//! cargo run -p own_store -- locks & cargo run -p own_store -- locks
//! ```

use std::time::Duration;

use dlock::{Config, LockError, current, distributed_lock};

#[distributed_lock(key = "printer")]
async fn print(page: u32) -> Result<(), LockError> {
    if let Some(held) = current() {
        let (process, token) = (std::process::id(), held.token());
        println!("process {process} prints page {page}, token {token}");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args()
        .nth(1)
        .ok_or("say which directory holds the locks")?;
    dlock::init(Config::with_backend(own_store::directory(directory))).await?;
    for page in 1..=5 {
        print(page).await?;
    }
    dlock::shutdown().await;
    Ok(())
}
