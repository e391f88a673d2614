//! Attributes on the function and on its arguments.

use dlock::distributed_lock;

use crate::support::{ShopError, alone, held};

/// Documented.
#[doc(alias = "locked")]
#[distributed_lock(key = "cfg:<there>")]
#[must_use = "it may have failed"]
#[inline]
async fn cfg_arguments(
    #[cfg(test)] there: u32,
    #[cfg(not(test))] gone: Gone,
    #[cfg(any())] also_gone: Gone,
    #[cfg(not(any()))] always: String,
) -> Result<String, ShopError> {
    Ok(format!("{} {there} {always}", held()))
}

#[distributed_lock(key = "lints")]
async fn lints_on_arguments(
    #[allow(unused_variables)] allowed: u32,
    #[expect(unused_variables, reason = "to see it expected")] expected: u32,
    #[allow(unused_mut)] mut mutable: u32,
    _underscored: String,
) -> Result<u32, ShopError> {
    Ok(mutable)
}

#[distributed_lock(key = "function", ttl = "1h")]
#[allow(unused_variables)]
async fn lints_on_the_function(unused: String) -> Result<(), ShopError> {
    let also_unused = 3;
    Ok(())
}

#[cfg(any())]
#[distributed_lock(nonsense)]
async fn gone() {}

#[tokio::test]
async fn attributes_stay_where_they_were() {
    alone(async {
        let shown = cfg_arguments(3, "yes".to_owned()).await;
        assert_eq!(shown.as_deref(), Ok("cfg:3 3 yes"));
        assert_eq!(lints_on_arguments(1, 2, 3, String::new()).await, Ok(3));
        assert_eq!(lints_on_the_function(String::new()).await, Ok(()));
    })
    .await;
}
