use dlock::{LockError, distributed_lock};

#[distributed_lock(key = name)]
async fn deduct(name: String) -> Result<usize, LockError> {
    Ok(name.len())
}

fn main() {}
