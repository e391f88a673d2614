//! Keys that are expressions.

use std::sync::LazyLock;

use dlock::{LockError, LockKey, distributed_lock};

use crate::support::{ShopError, alone, held};

const NAME: &str = "constant";

struct Order {
    id: u32,
    names: Vec<String>,
}

impl From<&Order> for LockKey {
    fn from(order: &Order) -> Self {
        format!("order:{}", order.id).into()
    }
}

#[distributed_lock(key = NAME)]
async fn constant() -> Result<String, LockError> {
    Ok(held())
}

const TEMPLATE: &str = "report:<day>";

#[distributed_lock(key = TEMPLATE)]
async fn constant_that_reads_as_a_template(day: &str) -> Result<String, LockError> {
    Ok(held() + day)
}

const STOCK: &str = "stock:{sku}";

#[distributed_lock(key = STOCK)]
async fn constant_that_reads_as_a_format_string(sku: &str) -> Result<String, LockError> {
    Ok(held() + sku)
}

static LAZY: LazyLock<String> = LazyLock::new(|| STOCK.to_owned());

#[distributed_lock(key = &**LAZY)]
async fn what_a_static_refers_to(sku: &str) -> Result<String, LockError> {
    Ok(held() + sku)
}

#[distributed_lock(key = String::from(STOCK))]
async fn meant_as_text(sku: &str) -> Result<String, LockError> {
    Ok(held() + sku)
}

#[distributed_lock(key = STOCK)]
async fn hash_tag_of_no_argument(user: &str) -> Result<String, LockError> {
    Ok(held() + user)
}

#[distributed_lock(key = STOCK.replace("{sku}", sku))]
async fn filled_in_by_a_call(sku: &str) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = match sku { "" => "<none>".to_owned(), _ => format!("stock:{sku}") })]
async fn one_of_two(sku: &str) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = vec![format!("stock:{sku}"), "<all>".into()])]
async fn formatted_in_a_list(sku: &str) -> Result<String, LockError> {
    Ok(held())
}

struct Keys;

impl Keys {
    const BOTH: [&str; 2] = ["report", "report:<self.day>"];
}

impl Keys {
    #[distributed_lock(key = Keys::BOTH)]
    async fn several_in_one(&self) -> Result<String, LockError> {
        Ok(held())
    }
}

#[distributed_lock(key = [super::key_expressions::NAME, TEMPLATE])]
async fn in_an_array(day: &str) -> Result<String, LockError> {
    Ok(held() + day)
}

#[distributed_lock(key = ["a:<day>", TEMPLATE])]
async fn beside_a_template(day: &str) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = [TEMPLATE, "a:<month>"])]
async fn constant_without_the_name_of_an_argument(month: &str) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = TEMPLATE)]
async fn constant_without_arguments() -> Result<String, LockError> {
    Ok(held())
}

#[allow(non_snake_case)]
#[distributed_lock(key = KEY, on_error = |error| error.to_string())]
async fn argument_in_capitals(KEY: &str) -> String {
    held()
}

#[distributed_lock(key = format!("stock:{sku}"))]
async fn format_string(sku: &str) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = order)]
async fn own_conversion(order: &Order) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = order.names.clone())]
async fn list(order: Order) -> Result<u32, LockError> {
    assert_eq!(held(), "a + b");
    Ok(order.id)
}

#[distributed_lock(key = name)]
async fn consumed_by_the_key(name: String) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = ("a:", 3).0)]
async fn in_parentheses() -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = lookup(id).await?)]
async fn awaits_and_may_fail(id: u32) -> Result<String, ShopError> {
    Ok(held())
}

async fn lookup(id: u32) -> Result<String, ShopError> {
    tokio::task::yield_now().await;
    if id == 0 {
        Err(ShopError::BadNumber)
    } else {
        Ok(format!("looked up:{id}"))
    }
}

#[tokio::test]
async fn any_key() {
    alone(async {
        assert_eq!(constant().await.expect("free"), "constant");
        assert_eq!(format_string("mug").await.expect("free"), "stock:mug");
        assert_eq!(filled_in_by_a_call("mug").await.expect("free"), "stock:mug");
        assert_eq!(one_of_two("mug").await.expect("free"), "stock:mug");
        let formatted = formatted_in_a_list("mug").await;
        assert_eq!(formatted.expect("free"), "stock:mug + <all>");
        let order = Order {
            id: 3,
            names: vec!["a".to_owned(), "b".to_owned()],
        };
        assert_eq!(own_conversion(&order).await.expect("free"), "order:3");
        assert_eq!(list(order).await.expect("free"), 3);
        assert_eq!(
            consumed_by_the_key("x".to_owned()).await.expect("free"),
            "x"
        );
        assert_eq!(in_parentheses().await.expect("free"), "a:");
        assert_eq!(awaits_and_may_fail(3).await.as_deref(), Ok("looked up:3"));
        assert_eq!(awaits_and_may_fail(0).await, Err(ShopError::BadNumber));
    })
    .await;
}

#[tokio::test]
async fn a_constant_is_no_template() {
    alone(async {
        for (refused, text) in [
            (constant_that_reads_as_a_template("monday").await, "<day>"),
            (Keys.several_in_one().await, "<self.day>"),
            (in_an_array("monday").await, "<day>"),
            (beside_a_template("monday").await, "<day>"),
            (constant_that_reads_as_a_format_string("mug").await, "{sku}"),
            (what_a_static_refers_to("mug").await, "{sku}"),
        ] {
            let error = refused.expect_err(text);
            assert!(matches!(error, LockError::InvalidKey { .. }), "{error:?}");
            let error = error.to_string();
            assert!(
                error.contains(&format!("contains `{text}` as text")),
                "{error}"
            );
        }
        let keys = [
            constant_without_the_name_of_an_argument("<day>").await,
            constant_without_arguments().await,
            hash_tag_of_no_argument(":a").await,
            meant_as_text(":a").await,
        ];
        let keys = keys.map(|key| key.expect("free"));
        assert_eq!(
            keys,
            [
                "report:<day> + a:<day>",
                "report:<day>",
                "stock:{sku}:a",
                "stock:{sku}:a"
            ]
        );
        assert_eq!(argument_in_capitals("<KEY>").await, "<KEY>");
    })
    .await;
}
