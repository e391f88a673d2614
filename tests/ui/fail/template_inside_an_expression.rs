use dlock::{LockError, distributed_lock};

#[distributed_lock(key = format!("stock:<sku>"))]
async fn angles_in_a_format_string(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len())
}

#[distributed_lock(key = concat!("stock:", "<sku>"))]
async fn angles_in_a_macro(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len())
}

#[distributed_lock(key = "stock:{sku}".to_owned())]
async fn braces_in_a_string(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len())
}

fn main() {}
