//! How one lock is taken: the settings from the attribute's arguments or the request's methods,
//! before the manager's defaults fill the gaps.

use std::panic::Location;
use std::time::Duration;

use crate::backend::Mode;
use crate::key::LockKey;

/// How long a caller is willing to wait.
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
    /// This long, including an outage of the store.
    Within(Duration),
}

/// What happens to a body whose lease was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLost {
    /// It is dropped at its next await.
    #[default]
    Cancel,
    /// It continues; [`current`](crate::current) shows the loss.
    Continue,
}

/// What the keys of a lock have in common with those of other locks, for lock-order detection.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Nothing: each key is compared by itself.
    Keys,
    /// One for each key, as written.
    Known(&'static [Part]),
    /// To be read from the template, which was given at run time.
    OfTemplate,
}

/// One key of a lock, as far as it is known at compile time.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// As written.
    pub template: &'static str,
    /// The template with `<>` for each value; empty without values.
    pub shape: &'static str,
    /// For a constant: the arguments of the function, whose names it must not contain as a template
    /// would. Empty for all other keys.
    pub arguments: &'static [&'static str],
}

/// All settings of a lock except its key. The attribute makes one `const` for each function, so the
/// fields are public to it and hidden from users.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where the lock is requested: the place of the attribute or of the call.
    pub site: &'static Location<'static>,
    /// The name of this lock in spans, metrics and warnings, of low cardinality: the key as written
    /// in the attribute, or several keys with `, ` between them.
    pub template: &'static str,
    pub shapes: Shapes,
    pub ttl: Option<Duration>,
    pub patience: Patience,
    pub mode: Mode,
    /// Both `read` and `permits` were requested. This is refused: the last one would win, and the
    /// limit could be lost unnoticed.
    pub two_modes: bool,
    pub renew: bool,
    pub max_hold: Option<Duration>,
    pub min_hold: Option<Duration>,
    /// How long a body that returned `Ok` is remembered.
    pub once: Option<Duration>,
    pub on_lost: OnLost,
    pub fenced: bool,
}

impl Options {
    /// The defaults of the attribute's table, for a lock that is requested where this is called.
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
            two_modes: false,
            renew: true,
            max_hold: None,
            min_hold: None,
            once: None,
            on_lost: OnLost::Cancel,
            fenced: false,
        }
    }
}

/// Where one lock was requested, and under which name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) site: &'static Location<'static>,
    pub(crate) template: &'static str,
    /// A template that other keys may share, whatever the names of its values. A key without values
    /// is compared by itself.
    pub(crate) shape: &'static str,
}

impl Options {
    /// The origin of the lock `name`, one of those of `key`.
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
