#![deny(warnings, unreachable_pub)]

use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock:<in_the_key>")]
async fn unused(in_the_key: u32, unused: u32, (mut left, _right): (u32, u32)) -> Result<u32, LockError> {
    let mut local = 1;
    let never_read = left;
    Ok::<u32, LockError>(local);
    if unused_in_the_body() { return Ok(1) } else { return Ok(2) };
    Ok(3)
}

#[deprecated]
fn unused_in_the_body() -> bool {
    (true)
}

#[must_use]
#[distributed_lock(key = "stock:<sku>")]
async fn must_be_used(mut sku: u32) -> Result<u32, LockError> {
    Ok(sku)
}

mod private {
    use super::*;

    #[distributed_lock(key = "stock")]
    pub async fn unreachable() -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {
    must_be_used(1);
    let _ = unused(1, 2, (3, 4));
}
