use dlock::distributed_lock;

#[derive(Debug)]
enum ShopError {
    BadNumber,
}

impl From<std::num::ParseIntError> for ShopError {
    fn from(_: std::num::ParseIntError) -> Self {
        Self::BadNumber
    }
}

type Result<T> = std::result::Result<T, ShopError>;

#[distributed_lock(key = "stock")]
async fn deduct(number: &str) -> Result<u32> {
    Ok(number.parse()?)
}

#[distributed_lock(key = "stock")]
async fn opaque() -> std::result::Result<impl Iterator<Item = u32>, String> {
    Ok(0..3)
}

fn main() {}
