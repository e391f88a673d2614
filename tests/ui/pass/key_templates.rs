//! What may stand between `<` and `>`.

use std::fmt;

use dlock::{LockError, distributed_lock};

use crate::support::{alone, held};

struct Line {
    id: u32,
}

struct Order {
    lines: Vec<Line>,
    text: &'static str,
}

trait Named {
    const NAME: &'static str;
}

impl Named for Order {
    const NAME: &'static str = "named";
}

#[distributed_lock(
    key = "<order.lines[0].id>:<order.text.len()>:<order.text.parse::<u32>().is_ok()>"
)]
async fn fields_and_calls(order: &Order) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(
    key = "<(a > b)>/<a + b>/<-a>/<if a == b { \"same\" } else { \"other\" }>/<[1, 2].iter().filter(|n| **n > 1).count()>"
)]
async fn operators(a: i32, b: i32) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(
    key = "<Order::NAME>/< <Order as Named>::NAME>/<{<Order as Named>::NAME}>/<u8::MAX>"
)]
async fn paths() -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = "<code[..len]>/<code[from..len]>/<(0..len).count()>")]
async fn ranges(code: &str, from: usize, len: usize) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = "a<<b->{<id>}{other}%>")]
async fn text(id: u8) -> Result<String, LockError> {
    Ok(held())
}

/// Redis Cluster keeps together the keys with the same text in braces.
#[distributed_lock(key = "{carts}:<user>:{shop}#1")]
async fn hash_tag_of_text(user: u32) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = "cart:{<user>}:<size>")]
async fn hash_tag_of_a_value(user: u32, size: u32) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = [String::from("{carts}:{}"), "a:<user>"])]
async fn meant_as_text_in_an_expression(user: u32) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = "a:<user>:<\"{\">user}:<\"#\">user")]
async fn meant_as_text_in_a_template(user: u32) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = "{carts}:{}:$user")]
async fn braces_without_arguments() -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = r#"<"raw >">:<'>'>"#)]
async fn literals() -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = "<first><second>")]
async fn side_by_side(first: &str, second: &str) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = "<r#type>:<value>")]
async fn raw_names_and_unsized(r#type: u8, value: &dyn fmt::Display) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = "spec:<format!(\"{id:03}\")>")]
async fn macros(id: u32) -> Result<String, LockError> {
    Ok(held())
}

/// As chrono's `format` with a directive that it does not know.
struct Unshown;

impl fmt::Display for Unshown {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Err(fmt::Error)
    }
}

#[distributed_lock(key = "day:<day>")]
async fn a_value_that_cannot_be_shown(day: Unshown) -> Result<(), LockError> {
    unreachable!("it has no key");
}

#[tokio::test]
async fn a_value_that_cannot_be_shown_makes_no_key() {
    let refused = alone(a_value_that_cannot_be_shown(Unshown)).await;
    let error = refused.expect_err("no key");
    assert!(matches!(error, LockError::InvalidKey { .. }), "{error:?}");
    let error = error.to_string();
    assert!(
        error.contains("a value of it could not be shown"),
        "{error}"
    );
}

#[tokio::test]
async fn expressions_are_shown() {
    alone(async {
        let order = Order {
            lines: vec![Line { id: 4 }],
            text: "12",
        };
        assert_eq!(fields_and_calls(&order).await.expect("free"), "4:2:true");
        assert_eq!(operators(3, 2).await.expect("free"), "true/5/-3/other/1");
        assert_eq!(paths().await.expect("free"), "named/named/named/255");
        assert_eq!(ranges("blue", 1, 3).await.expect("free"), "blu/lu/3");
        assert_eq!(text(7).await.expect("free"), "a<b->{7}{other}%>");
        assert_eq!(
            hash_tag_of_text(7).await.expect("free"),
            "{carts}:7:{shop}#1"
        );
        assert_eq!(hash_tag_of_a_value(7, 2).await.expect("free"), "cart:{7}:2");
        assert_eq!(
            meant_as_text_in_an_expression(7).await.expect("free"),
            "{carts}:{} + a:7"
        );
        assert_eq!(
            meant_as_text_in_a_template(7).await.expect("free"),
            "a:7:{user}:#user"
        );
        assert_eq!(
            braces_without_arguments().await.expect("free"),
            "{carts}:{}:$user"
        );
        assert_eq!(literals().await.expect("free"), "raw >:>");
        assert_eq!(raw_names_and_unsized(1, &"x").await.expect("free"), "1:x");
        assert_eq!(macros(7).await.expect("free"), "spec:007");
        let keys = [
            side_by_side("a", "bc").await.expect("free"),
            side_by_side("ab", "c").await.expect("free"),
        ];
        assert_ne!(keys[0], keys[1]);
    })
    .await;
}
