use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock")]
fn deduct() -> Result<(), LockError> {
    Ok(())
}

struct Reserved;

impl Drop for Reserved {
    #[distributed_lock(key = "stock")]
    fn drop(&mut self) {}
}

fn main() {
    let _ = deduct();
}
