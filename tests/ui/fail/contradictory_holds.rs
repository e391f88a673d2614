use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock", max_hold = "10m", renew = false)]
async fn never_renewed() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", min_hold = "1h", max_hold = "59m")]
async fn held_for_longer_than_it_may_be() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
