use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "api", permits = 0)]
async fn none() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "api", permits = -1)]
async fn less_than_none() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "api", permits = 5_000_000_000)]
async fn too_many() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "api", permits = "10")]
async fn in_quotes() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "api", permits)]
async fn without_a_number() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "api", permits = 10, mode = "read")]
async fn beside_a_mode() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "api", fenced, permits = 2)]
async fn fenced() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "api", permits = name)]
async fn no_number(name: &str) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
