use dlock::distributed_lock;

#[distributed_lock(key = "stock")]
struct Shop;

#[distributed_lock(key = "stock")]
const SHOP: Shop = Shop;

fn main() {
    let Shop = SHOP;
}
