use dlock::{LockError, distributed_lock};

struct Sku(u32);

#[distributed_lock(key = "stock:<sku>:eu")]
async fn deduct(sku: Sku) -> Result<u32, LockError> {
    Ok(sku.0)
}

#[distributed_lock(key = ["a", "stock:<sku.0>:<size>"])]
async fn deduct_sized(sku: Sku, size: Option<u32>) -> Result<Option<u32>, LockError> {
    Ok(size)
}

fn main() {}
