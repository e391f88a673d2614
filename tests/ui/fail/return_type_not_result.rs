use dlock::distributed_lock;

type Count = u32;

#[distributed_lock(key = "stock")]
async fn number() -> Count {
    3
}

#[distributed_lock(key = "stock")]
async fn option(number: u32) -> Option<u32> {
    let number = number.checked_add(1)?;
    Some(number)
}

#[distributed_lock(key = "stock")]
async fn nothing(number: u32) {
    println!("{number}");
}

#[distributed_lock(key = "stock")]
async fn never() -> ! {
    panic!()
}

#[distributed_lock(key = "stock")]
async fn opaque() -> impl Iterator<Item = u32> {
    0..3
}

#[distributed_lock(key = "stock")]
fn boxed() -> std::pin::Pin<Box<dyn Future<Output = u32>>> {
    Box::pin(async move { 3 })
}

fn main() {}
