use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock", ttl = "30")]
async fn without_a_unit() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", ttl = "1d")]
async fn unknown_unit() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", timeout = "1.5s")]
async fn fraction() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", max_hold = "30s1m")]
async fn order() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", ttl = "0s")]
async fn zero() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", min_hold = "99999999999999999h")]
async fn overflow() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", ttl = "9ms")]
async fn shorter_than_any_lease() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", timeout = "87601h")]
async fn longer_than_any_wait() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
