//! What examples read their options with.

use std::fmt::Display;
use std::str::FromStr;

/// The value of an option. An error names the option.
pub(crate) fn value<T: FromStr<Err: Display>>(
    parser: &mut lexopt::Parser,
    option: &str,
) -> Result<T, String> {
    let value = parser.value().map_err(|error| error.to_string())?;
    let value = value.into_string();
    let value = value.map_err(|_| format!("{option} is given something that is not UTF-8"))?;
    let parsed = value.parse();
    parsed.map_err(|error| format!("{option} cannot be `{value}`: {error}"))
}
