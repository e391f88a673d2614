//! A shop that has its locks from another library.

pub use crate::usual::*;

/// How long a lock of the other library lasts.
pub const TTL: Duration = Duration::from_secs(10);

macro_rules! errors {
    ($($error:ident: $($variant:ident($source:ty))*;)*) => {$(
        /// What can go wrong.
        #[derive(Debug)]
        pub enum $error {
            $(
                /// By this.
                $variant($source),
            )*
        }

        $(
            impl From<$source> for $error {
                fn from(error: $source) -> Self {
                    Self::$variant(error)
                }
            }
        )*
    )*};
}

errors! {
    ShopError: Lock(LockError) Before(rslock::LockError);
    ImportError: Lock(LockError) Database(sqlx::Error);
}

/// Where the pieces are.
pub mod warehouse {
    /// Takes so many pieces out, and says how many are left.
    ///
    /// # Errors
    ///
    /// None.
    pub async fn take(_sku: &str, quantity: u32) -> Result<u32, super::ShopError> {
        Ok(100 - quantity)
    }

    /// The same, unless somebody with a higher token was there.
    ///
    /// # Errors
    ///
    /// None.
    pub async fn take_by(
        sku: &str,
        quantity: u32,
        _token: dlock::FencingToken,
    ) -> Result<u32, super::ShopError> {
        take(sku, quantity).await
    }
}

/// What a batch has.
///
/// # Errors
///
/// None.
pub async fn read_records(_batch: i64) -> Result<u32, ImportError> {
    Ok(17)
}
