use dlock::distributed_lock;

#[distributed_lock(key = "stock", on_error = None)]
async fn none() -> Option<u32> {
    Some(3)
}

#[distributed_lock(key = "stock", on_error = false)]
async fn number() -> bool {
    true
}

#[distributed_lock(key = "stock", on_error = Ok(()))]
async fn result() -> Result<(), String> {
    Ok(())
}

fn main() {}
