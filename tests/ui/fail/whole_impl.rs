use dlock::{LockError, distributed_lock};

struct Shop;

#[distributed_lock(key = "shop")]
impl Shop {
    async fn close(&self) -> Result<(), LockError> {
        Ok(())
    }
}

#[distributed_lock(key = "shop")]
trait Close {
    async fn close(&self);
}

#[distributed_lock(key = "shop")]
unsafe impl Send for Shop {}

fn main() {
    let _ = Shop.close();
}
