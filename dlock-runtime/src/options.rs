//! How one lock is taken: what the attribute's arguments and the request's
//! methods set, before the manager's defaults fill the gaps.

use std::panic::Location;
use std::time::Duration;

use crate::backend::Mode;
use crate::key::LockKey;

/// How long a caller is ready to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
pub enum OnLost {
    /// It is dropped at its next await.
    #[default]
    Cancel,
    /// It goes on; [`current`](crate::current) shows the loss.
    Continue,
}

/// What the keys of a lock have in common with those of other locks: what
/// lock-order detection goes by.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Nothing: each key stands for itself.
    Keys,
    /// One for each key, as written.
    Known(&'static [Part]),
    /// To be read from the template, which was given at run time.
    OfTemplate,
}

/// One key of a lock, as far as it is known when compiling.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// As written.
    pub template: &'static str,
    /// The template with `<>` for each value; empty without values.
    pub shape: &'static str,
}

/// Everything about a lock but its key. The attribute makes one `const` per
/// function, so the fields are public to it and hidden from users.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where the lock is asked for: the attribute's place, or the call's.
    pub site: &'static Location<'static>,
    /// The name of this lock in spans, metrics and warnings, of low
    /// cardinality: the key as the attribute has it, several with `, ` between.
    pub template: &'static str,
    pub shapes: Shapes,
    pub ttl: Option<Duration>,
    pub patience: Patience,
    pub mode: Mode,
    pub renew: bool,
    pub max_hold: Option<Duration>,
    pub min_hold: Option<Duration>,
    /// A body that returned `Ok` is remembered for so long.
    pub once: Option<Duration>,
    pub on_lost: OnLost,
    pub fenced: bool,
}

impl Options {
    /// The defaults of the attribute's table, for a lock that is asked for
    /// where this is called.
    #[must_use]
    #[track_caller]
    #[expect(
        clippy::new_without_default,
        reason = "a default is made in places that tell nobody anything"
    )]
    pub const fn new() -> Self {
        Self {
            site: Location::caller(),
            template: "unnamed",
            shapes: Shapes::Keys,
            ttl: None,
            patience: Patience::Configured,
            mode: Mode::Write,
            renew: true,
            max_hold: None,
            min_hold: None,
            once: None,
            on_lost: OnLost::Cancel,
            fenced: false,
        }
    }
}

/// Where one lock was asked for, and under which name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) site: &'static Location<'static>,
    pub(crate) template: &'static str,
    /// A template that other keys may have too, whatever its values are called. One
    /// without values stands for itself.
    pub(crate) shape: &'static str,
}

impl Options {
    /// The origin of the lock that is `name` among those of `key`.
    pub(crate) fn origin(&self, key: &LockKey, name: &str) -> Origin {
        let index = || key.names().position(|written| written == name);
        let (template, shape) = match self.shapes {
            Shapes::Keys => (self.template, ""),
            Shapes::Known(parts) => match index().and_then(|index| parts.get(index)) {
                Some(part) => (part.template, part.shape),
                None => (self.template, ""),
            },
            Shapes::OfTemplate => {
                let templates = || self.template.split(", ");
                let one_each = templates().count() == key.names().count();
                let own = index().and_then(|index| templates().nth(index));
                let own = own.filter(|_| one_each).unwrap_or(self.template);
                (own, own)
            }
        };
        Origin {
            site: self.site,
            template,
            shape,
        }
    }
}
