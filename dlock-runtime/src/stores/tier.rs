//! What a server's tokens are worth, according to its settings. These may change.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::backend::TokenTier;

/// The tier that was found last. Some stores look whenever they connect, others with each grant.
/// They look before the connection or the grant is used. So the tier that is read here after a
/// grant was known when the lock was granted.
#[derive(Debug)]
pub(super) struct FoundTier(AtomicU8);

impl FoundTier {
    /// Before anything was looked at.
    pub(super) fn unknown() -> Self {
        Self(AtomicU8::new(number(TokenTier::BestEffort)))
    }

    /// Somebody has looked, and has found this tier.
    pub(super) fn set(&self, tier: TokenTier) {
        self.0.store(number(tier), Ordering::Release);
    }

    pub(super) fn get(&self) -> TokenTier {
        match self.0.load(Ordering::Acquire) {
            2 => TokenTier::Strict,
            1 => TokenTier::BestEffort,
            _ => TokenTier::None,
        }
    }
}

fn number(tier: TokenTier) -> u8 {
    match tier {
        TokenTier::None => 0,
        TokenTier::BestEffort => 1,
        TokenTier::Strict => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_best_effort_until_it_was_looked_at() {
        let tier = FoundTier::unknown();
        assert_eq!(tier.get(), TokenTier::BestEffort);
        for found in [TokenTier::Strict, TokenTier::None, TokenTier::BestEffort] {
            tier.set(found);
            assert_eq!(tier.get(), found);
        }
    }
}
