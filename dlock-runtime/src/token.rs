//! Fencing tokens: the number that distinguishes a late writer from the current holder.

use std::fmt;
use std::num::{ParseIntError, TryFromIntError};
use std::str::FromStr;

/// How many token numbers one grant of a store reserves.
///
/// A grant may be handed from task to task inside the process without asking the store, and each
/// hand-over needs a greater token than the one before it. The grant's own token is the first of
/// these numbers.
pub const TOKENS_PER_GRANT: u64 = 64;

/// A number that rises with every grant of a key.
///
/// Send it along with each write that the lock protects, and let the resource refuse a token lower
/// than the highest it has seen. Then a holder that was paused past its ttl cannot overwrite the
/// work of its successor.
///
/// ```
/// # use dlock_runtime as dlock;
/// use dlock::FencingToken;
///
/// let (older, newer) = (FencingToken::from(64), FencingToken::from(128));
/// assert!(older < newer);
/// assert_eq!(u64::from(newer), 128);
/// assert_eq!(newer.to_string(), "128");
/// ```
///
/// As a signed column of a database, and as text:
///
/// ```
/// # use dlock_runtime as dlock;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use dlock::FencingToken;
/// let token = FencingToken::from(128);
/// let column = i64::try_from(token)?;
/// assert_eq!(FencingToken::try_from(column)?, token);
/// assert_eq!("128".parse::<FencingToken>()?, token);
/// # Ok(()) }
/// ```
///
/// With the feature `serde` it is a number. Some readers of JSON (JavaScript) round numbers above
/// 2^53: give them text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token from a store without tokens: lower than every real token, so that a resource that
    /// has seen a real one refuses it.
    pub const NONE: Self = Self(0);

    /// The token of the `index`th hand-over after the grant.
    pub(crate) fn handed_over(self, index: u64) -> Self {
        debug_assert!(index < TOKENS_PER_GRANT);
        if self == Self::NONE {
            self
        } else {
            Self(self.0 + index)
        }
    }
}

/// The first of the numbers of a grant that a transaction of this number has made, in
/// a store that counts its transactions and keeps a floor; `None` if it is none.
pub(crate) fn of_transaction(number: i64, floor: u64) -> Option<u64> {
    let counted = u64::try_from(number).ok()?.checked_mul(TOKENS_PER_GRANT)?;
    counted.checked_add(floor)
}

impl From<u64> for FencingToken {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// For a column of a database. An error above `i64::MAX`.
impl TryFrom<FencingToken> for i64 {
    type Error = TryFromIntError;

    fn try_from(token: FencingToken) -> Result<Self, Self::Error> {
        token.0.try_into()
    }
}

/// From a column of a database. An error below 0.
impl TryFrom<i64> for FencingToken {
    type Error = TryFromIntError;

    fn try_from(number: i64) -> Result<Self, Self::Error> {
        number.try_into().map(Self)
    }
}

/// From text, as displayed.
impl FromStr for FencingToken {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}
