//! Holders of whom an earlier command may still be under way.
//!
//! A request that got its lock after an answer was lost holds it like any
//! other. But the lost command may be run yet; after the release it would lock
//! the key again, for nobody. So such a release is repeated for a while.

use std::time::Instant;

use super::seldom::Seldom;
use crate::backend::Owner;

#[derive(Default)]
pub(crate) struct UnknownOutcomes(Seldom<Command>);

struct Command {
    sent_at: Instant,
    /// What was sent then locks nothing any more; never, if that is not in any
    /// program's life.
    until: Option<Instant>,
}

impl Command {
    fn is_past(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl UnknownOutcomes {
    /// A command of this owner, sent at this time, was never answered. Until when
    /// it is of concern is the store's to say.
    pub(crate) fn add(&self, owner: Owner, sent_at: Instant, until: Option<Instant>, now: Instant) {
        // Those whose lease was lost are never taken out.
        self.0.retain(|command| !command.is_past(now));
        self.0.insert(owner, Command { sent_at, until });
    }

    /// Takes an owner out: when its unanswered command was sent, if that is
    /// still of any concern.
    pub(crate) fn take(&self, owner: Owner, now: impl FnOnce() -> Instant) -> Option<Instant> {
        let command = self.0.remove(owner)?;
        (!command.is_past(now())).then_some(command.sent_at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_command_is_of_concern_for_as_long_as_its_store_says() {
        let unknown = UnknownOutcomes::default();
        let [short, long, never] = [(); 3].map(|()| Owner::unique());
        let minute = Duration::from_secs(60);
        let sent_at = Instant::now();
        unknown.add(short, sent_at, Some(sent_at), sent_at);
        unknown.add(long, sent_at, Some(sent_at + minute), sent_at);
        assert_eq!(unknown.take(short, || sent_at), None);
        assert_eq!(unknown.take(never, || sent_at), None);
        assert_eq!(unknown.take(long, || sent_at), Some(sent_at));
        assert_eq!(unknown.take(long, || sent_at), None, "it is taken out");
        unknown.add(long, sent_at, Some(sent_at + minute), sent_at);
        assert_eq!(unknown.take(long, || sent_at + minute), None);
        unknown.add(long, sent_at, None, sent_at);
        assert_eq!(unknown.take(long, || sent_at + minute), Some(sent_at));
    }
}
