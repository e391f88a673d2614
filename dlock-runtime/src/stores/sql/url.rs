//! What is dlock's own in a URL that `sqlx` reads.

use crate::backend::{BackendError, BackendErrorKind};

/// Takes a parameter of dlock's out of a URL: `true` or `false`, and false
/// without it.
pub(super) fn take_parameter(url: &str, name: &str) -> Result<(String, bool), BackendError> {
    let Some((base, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), false));
    };
    let mut value = false;
    let mut rest = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some((found, "true")) if found == name => value = true,
            Some((found, "false")) if found == name => value = false,
            Some((found, _)) if found == name => {
                return Err(BackendError::new(
                    BackendErrorKind::Config,
                    format!("`{name}` in the URL is `true` or `false`"),
                ));
            }
            _ => rest.push(pair),
        }
    }
    let query = rest.join("&");
    let url = if query.is_empty() {
        base.to_owned()
    } else {
        format!("{base}?{query}")
    };
    Ok((url, value))
}
