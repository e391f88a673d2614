use dlock::{LockError, distributed_lock};

#[distributed_lock(key = format!("stock:<sku>"))]
async fn angles_in_a_format_string(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len())
}

#[distributed_lock(key = concat!("stock:", "<sku>"))]
async fn angles_in_a_macro(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len())
}

#[distributed_lock(key = "stock:{sku}".to_owned())]
async fn braces_in_a_string(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len())
}

// What else the expression mentions does not matter.

struct Order {
    id: u32,
    gift: bool,
}

#[distributed_lock(key = if order.gift { "gift:<order.id>" } else { "order:<order.id>" })]
async fn ends_of_an_if(order: &Order) -> Result<u32, LockError> {
    Ok(order.id)
}

#[distributed_lock(key = match sku { "" => "none", _ => "stock:{sku}" })]
async fn an_arm_of_a_match(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len())
}

#[distributed_lock(key = ["a:{from}".to_string(), other(from)])]
async fn an_element_of_an_array(from: u32) -> Result<u32, LockError> {
    Ok(from)
}

#[distributed_lock(key = vec![String::from("a:{from}"), other(from)])]
async fn an_element_of_a_list(from: u32) -> Result<u32, LockError> {
    Ok(from)
}

fn other(from: u32) -> String {
    format!("b:{from}")
}

#[distributed_lock(key = vec!["account:{from}", "account:{to}"])]
async fn braces_in_a_list(from: u32, to: u32) -> Result<u32, LockError> {
    Ok(from + to)
}

#[distributed_lock(key = concat!(env!("CARGO_PKG_NAME"), ":stock:{sku}"))]
async fn braces_in_a_macro(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len())
}

fn main() {}
