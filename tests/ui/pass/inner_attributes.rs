//! Attributes inside the body's braces.

use dlock::distributed_lock;

use crate::support::{ShopError, alone};

#[distributed_lock(key = "inner")]
async fn inner(unused: String, mut number: u32) -> Result<u32, ShopError> {
    #![allow(unused_variables, unused_mut)]
    //! Documentation, too.
    let also_unused = 3;
    Ok(number)
}

#[tokio::test]
async fn cover_the_whole_function() {
    assert_eq!(alone(inner(String::new(), 3)).await, Ok(3));
}
