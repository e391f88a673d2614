use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock:<id:?>")]
async fn debug(id: u32) -> Result<u32, LockError> {
    Ok(id)
}

#[distributed_lock(key = "stock:<id:08>")]
async fn width(id: u32) -> Result<u32, LockError> {
    Ok(id)
}

#[distributed_lock(key = "stock:<type>")]
async fn keyword(r#type: u32) -> Result<u32, LockError> {
    Ok(r#type)
}

fn main() {}
