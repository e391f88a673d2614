use dlock::{LockError, distributed_lock};

#[distributed_lock(key = "stock:<skuu>")]
async fn misspelt(sku: &str) -> Result<usize, LockError> {
    Ok(sku.len())
}

struct Shop {
    name: String,
}

impl Shop {
    #[distributed_lock(key = "shop:<name>")]
    async fn field(&self) -> Result<usize, LockError> {
        Ok(self.name.len())
    }

    #[distributed_lock(key = "shop:<self.nam>")]
    async fn unknown_field(&self) -> Result<usize, LockError> {
        Ok(self.name.len())
    }

    #[distributed_lock(key = "shop:<(self.nam)>")]
    async fn unknown_field_in_parentheses(&self) -> Result<usize, LockError> {
        Ok(self.name.len())
    }
}

#[distributed_lock(key = "stock:<sku>")]
async fn no_arguments() -> Result<(), LockError> {
    Ok(())
}

#[async_trait::async_trait]
trait Close {
    #[distributed_lock(key = "shop:<self.id()>:<name>")]
    async fn destructured(&self, (name, _): (String, u32)) -> Result<usize, LockError> {
        Ok(name.len())
    }

    fn id(&self) -> u32;
}

fn main() {}
