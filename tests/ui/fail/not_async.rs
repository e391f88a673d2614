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

trait Close {
    fn close(&self) -> impl Future<Output = Result<(), LockError>> + Send;
}

impl Close for Reserved {
    #[distributed_lock(key = "stock")]
    fn close(&self) -> impl Future<Output = Result<(), LockError>> + Send {
        async { Ok(()) }
    }
}

fn main() {
    let _ = deduct();
}
