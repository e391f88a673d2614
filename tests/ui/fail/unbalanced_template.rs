use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock:<sku")]
async fn open(sku: u32) -> Result<u32, LockError> {
    Ok(sku)
}

#[distributed_lock(key = "stock:<f(sku>")]
async fn open_inside(sku: u32) -> Result<u32, LockError> {
    Ok(sku)
}

#[distributed_lock(key = "stock:<sku)>")]
async fn closed_inside(sku: u32) -> Result<u32, LockError> {
    Ok(sku)
}

#[distributed_lock(key = "stock:<>")]
async fn empty(sku: u32) -> Result<u32, LockError> {
    Ok(sku)
}

#[distributed_lock(key = "stock:<the sku>")]
async fn no_expression(sku: u32) -> Result<u32, LockError> {
    Ok(sku)
}

#[distributed_lock(key = "stock:<sku:>8>")]
async fn format_spec(sku: u32) -> Result<u32, LockError> {
    Ok(sku)
}

#[distributed_lock(key = "shard:<id >> 4>")]
async fn operator(id: u32) -> Result<u32, LockError> {
    Ok(id)
}

fn main() {}
