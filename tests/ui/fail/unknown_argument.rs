use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock", tll = "30s")]
async fn misspelt() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", retry: 3 times)]
async fn of_another_syntax() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock", mode("read"))]
async fn called() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
