//! What is bought.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The body of a request for an order.
#[derive(Deserialize)]
pub(crate) struct NewOrder {
    pub(crate) sku: Sku,
    pub(crate) quantity: u32,
}

/// An order, as it is in the books and in answers.
#[derive(Deserialize, Serialize)]
pub(crate) struct Order {
    pub(crate) id: u64,
    pub(crate) sku: Sku,
    pub(crate) quantity: u32,
    pub(crate) status: Status,
}

#[derive(Clone, Copy, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Placed,
    Paid,
    Cancelled,
}

/// The name of an article. It becomes part of a key, so a text of any length
/// from a stranger is refused before it gets there.
#[derive(Clone, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub(crate) struct Sku(String);

impl TryFrom<String> for Sku {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        let proper = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if (1..=40).contains(&name.len()) && name.bytes().all(proper) {
            Ok(Self(name))
        } else {
            Err("an article's name is up to 40 of a-z, 0-9 and -")
        }
    }
}

impl fmt::Display for Sku {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
