//! What may stand before `async fn`.

use dlock::distributed_lock;

use crate::support::{ShopError, alone};

/// # Safety
///
/// `pointer` must point to a number.
#[distributed_lock(key = "unsafe")]
pub(crate) async unsafe fn read(pointer: &*const u32) -> Result<u32, ShopError> {
    Ok(unsafe { **pointer })
}

#[tokio::test]
async fn qualifiers_stay() {
    let number = 3;
    let pointer = &raw const number;
    assert_eq!(
        alone(async { unsafe { read(&pointer) }.await }).await,
        Ok(3)
    );
}
