use dlock::{LockError, distributed_lock};

#[distributed_lock]
async fn nothing() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(ttl = "30s")]
async fn others() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock("stock")]
async fn without_its_name() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key)]
async fn without_a_value() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = , ttl = "30s")]
async fn without_a_value_again() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "")]
async fn empty() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = [])]
async fn empty_list() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
