use dlock::distributed_lock;

#[distributed_lock(key = "stock")]
struct Shop;

#[distributed_lock(key = "stock")]
const SHOP: Shop = Shop;

#[distributed_lock(key = "stock")]
unsafe extern "C" {}

fn main() {
    let Shop = SHOP;
}
