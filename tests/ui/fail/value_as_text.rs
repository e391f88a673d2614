use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "a:{skuu}")]
async fn misspelt(sku: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a:{}")]
async fn empty(sku: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a:<size>:{0}")]
async fn a_number(sku: &str, size: u32) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a:{ sku }")]
async fn with_spaces(sku: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a:{&sku.0}")]
async fn a_reference(sku: &(u32, u32)) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a:{(sku.0)}")]
async fn in_parentheses(sku: &(u32, u32)) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a:#sku")]
async fn hash(sku: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a:$sku:<size>")]
async fn dollar(sku: &str, size: u32) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a:${sku}")]
async fn dollar_and_braces(sku: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a:{type}")]
async fn keyword(r#type: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = ["{carts}:all", "{carts}:<sku>"])]
async fn one_of_two(sku: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock:<<sku>>")]
async fn doubled_brackets(sku: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "stock:sku>")]
async fn without_the_opening_bracket(sku: &str) -> Result<(), LockError> {
    Ok(())
}

struct Shop;

impl Shop {
    #[distributed_lock(key = "shop:{name}")]
    async fn only_self(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
