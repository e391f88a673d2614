use std::pin::Pin;

use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock")]
fn deduct() -> Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>> {
    println!("without the lock");
    Box::pin(async move { Ok(()) })
}

fn main() {
    let _ = deduct();
}
