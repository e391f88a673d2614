use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "report", once = "0s")]
async fn for_no_time() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "report", once = 48)]
async fn no_duration() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "report", once)]
async fn without_a_time() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "report", once = "48h", mode = "read")]
async fn beside_readers() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "report", once = "48h", permits = 2)]
async fn beside_permits() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = ["report:<day>", "audit"], once = "48h")]
async fn of_several(day: u32) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
