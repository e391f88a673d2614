use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock", ttl = "30s", ttl = "1m")]
async fn ttl() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", key = "shop")]
async fn key() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", try, timeout = "1s")]
async fn patience() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", timeout = "1s", wait)]
async fn patience_again() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
