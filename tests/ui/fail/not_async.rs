use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock")]
fn deduct() -> Result<(), LockError> {
    Ok(())
}

fn main() {
    let _ = deduct();
}
