use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock")]
async fn tail(sku: &str) -> Result<u32, LockError> {
    sku.len()
}

#[distributed_lock(key = "stock")]
async fn inside(sku: &str) -> Result<u32, LockError> {
    Ok(sku)
}

#[distributed_lock(key = "stock")]
async fn early(sku: &str) -> Result<u32, LockError> {
    if sku.is_empty() {
        return 0;
    }
    Ok(1)
}

#[distributed_lock(key = "stock")]
async fn semicolon(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len());
}

#[distributed_lock(key = "stock")]
async fn question_mark(sku: &str) -> Result<u32, LockError> {
    let number: u32 = sku.parse()?;
    Ok(number)
}

#[distributed_lock(key = "stock", on_error = |_| None)]
async fn on_error(sku: &str) -> Option<u32> {
    Ok(sku.len())
}

#[distributed_lock(key = "stock", on_error = |error| error.to_string())]
async fn of_on_error(sku: &str) -> usize {
    sku.len()
}

fn main() {}
