use dlock::{LockError, distributed_lock};

struct Shop {
    name: String,
}

#[distributed_lock(key = "stock:{sku}")]
async fn argument(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len())
}

#[distributed_lock(key = "stock:<size>:{sku:?}")]
async fn with_a_format(sku: &str, size: u32) -> Result<u32, LockError> {
    Ok(size + sku.len() as u32)
}

#[distributed_lock(key = ["a", "stock:{id}"])]
async fn in_a_pattern((id, _): (u32, u32)) -> Result<u32, LockError> {
    Ok(id)
}

impl Shop {
    #[distributed_lock(key = "shop:{self.name}")]
    async fn of_self(&self) -> Result<usize, LockError> {
        Ok(self.name.len())
    }
}

#[async_trait::async_trait]
trait Close {
    #[distributed_lock(key = "shop:{name}")]
    async fn close(&self, name: String) -> Result<usize, LockError> {
        Ok(name.len())
    }
}

fn main() {}
