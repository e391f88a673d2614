//! Functions and arguments that come from `macro_rules!`.

use dlock::{LockError, distributed_lock};

use crate::support::{ShopError, alone, held};

macro_rules! locked {
    ($name:ident, $key:literal, $ttl:literal, $mode:expr, $renew:literal, $body:block) => {
        #[distributed_lock(key = $key, ttl = $ttl, timeout = $ttl, mode = $mode, renew = $renew)]
        async fn $name() -> Result<String, LockError> $body
    };
}

locked!(literals, "from:<1 + 1>", "1m30s", "read", false, {
    Ok(held())
});

macro_rules! with_argument {
    ($name:ident($argument:ident: $ty:ty) -> $returned:ty, $key:expr, $on_error:expr) => {
        #[distributed_lock(key = $key, on_error = $on_error)]
        async fn $name($argument: $ty) -> $returned {
            format!("{} {}", $argument, held())
        }
    };
}

with_argument!(argument(id: u32) -> String, "argument:<id>", |_| String::new());
with_argument!(expression(id: u32) -> String, id.to_string(), |_| String::new());
with_argument!(array(id: u32) -> String, ["a:<id>", "b:<id>"], |_| String::new());

macro_rules! own_names {
    ($(#[$attribute:meta])* $vis:vis $name:ident) => {
        $(#[$attribute])*
        #[distributed_lock(key = "own:<id>")]
        $vis async fn $name(mut id: u32) -> Result<u32, ShopError> {
            id += 1;
            Ok(id)
        }
    };
}

own_names!(
    /// Documented.
    #[must_use = "it may have failed"]
    pub(super) own
);

#[tokio::test]
async fn macros_write_functions() {
    alone(async {
        assert_eq!(literals().await.expect("free"), "from:2");
        assert_eq!(argument(3).await, "3 argument:3");
        assert_eq!(expression(3).await, "3 3");
        assert_eq!(array(3).await, "3 a:3 + b:3");
        assert_eq!(own(3).await, Ok(4));
    })
    .await;
}
