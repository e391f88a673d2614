use dlock::{LockError, distributed_lock};

trait Shop {
    /// Closes the shop.
    #[distributed_lock(key = "shop")]
    async fn close(&self) -> Result<(), LockError>;
}

fn main() {}
