use dlock::{LockError, distributed_lock};

#[distributed_lock(key = sku + 1)]
async fn deduct(sku: u32) -> Result<u32, LockError> {
    Ok(sku)
}

#[distributed_lock(key = ["stock", sku])]
async fn one_of_several(sku: u32) -> Result<u32, LockError> {
    Ok(sku)
}

fn main() {}
