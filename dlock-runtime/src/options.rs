//! How one lock is taken: what the attribute's arguments and the request's
//! methods set, before the manager's defaults fill the gaps.

use std::time::Duration;

use crate::backend::Mode;

/// How long a caller is ready to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// As the manager's configuration says.
    #[default]
    Configured,
    /// For as long as it takes.
    Wait,
    /// Not at all.
    Try,
    /// This long, an outage of the store included.
    Within(Duration),
}

/// What becomes of a body whose lease was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLost {
    /// It is dropped at its next await.
    #[default]
    Cancel,
    /// It goes on; [`current`](crate::current) shows the loss.
    Continue,
}

/// Everything about a lock but its key. The attribute makes one `const` per
/// function, so the fields are public to it and hidden from users.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The key template as written, for spans and metrics: of low cardinality.
    /// Empty where the key is an expression.
    pub template: &'static str,
    pub ttl: Option<Duration>,
    pub patience: Patience,
    pub mode: Mode,
    pub renew: bool,
    pub max_hold: Option<Duration>,
    pub min_hold: Option<Duration>,
    pub on_lost: OnLost,
    pub fenced: bool,
}

impl Options {
    /// The defaults of the attribute's table.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            template: "",
            ttl: None,
            patience: Patience::Configured,
            mode: Mode::Write,
            renew: true,
            max_hold: None,
            min_hold: None,
            on_lost: OnLost::Cancel,
            fenced: false,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
