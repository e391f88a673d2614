use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock", ttl = 30)]
async fn number() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", ttl = std::time::Duration::from_secs(30))]
async fn expression() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", mode = "shared")]
async fn mode() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", on_lost = cancel)]
async fn on_lost() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", renew = "no")]
async fn renew() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", renew)]
async fn renew_alone() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", try = true)]
async fn flag() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", crate = "dlock")]
async fn krate() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", crate = <Shop as Names>::dlock)]
async fn qualified_krate() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = 'a')]
async fn character() -> Result<(), LockError> {
    Ok(())
}

const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

#[distributed_lock(key = "stock", timeout = TIMEOUT)]
async fn constant() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", wait = "5s")]
async fn wait_for_a_time() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", fenced = false)]
async fn fenced() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", try = TIMEOUT)]
async fn try_for_a_time() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
