use std::rc::Rc;

use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock:<sku>")]
async fn deduct(sku: String) -> Result<usize, LockError> {
    let shared_sku = Rc::new(sku);
    tokio::task::yield_now().await;
    Ok(shared_sku.len())
}

fn main() {
    tokio::spawn(deduct("mug".to_owned()));
}
