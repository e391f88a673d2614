use dlock::{LockError, distributed_lock};

#[tokio::test]
#[distributed_lock(key = "test")]
async fn test() -> Result<(), LockError> {
    Ok(())
}

#[tokio::main]
#[distributed_lock(key = "main")]
async fn main() -> Result<(), LockError> {
    Ok(())
}
