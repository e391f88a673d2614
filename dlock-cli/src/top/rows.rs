//! The rows of the two tables, sorted and filtered.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use dlock::backend::LockInfo;

use super::figure::Figure;
use super::metrics::counters::Times;
use super::metrics::rates::{Counted, Services};
use super::metrics::template::template_of;
use super::samples::{Look, Samples};
use crate::show;

/// A row of the table of keys.
#[derive(Clone, Debug)]
pub(super) struct KeyRow {
    pub(super) key: String,
    /// `free` when nobody holds it any more.
    pub(super) mode: String,
    pub(super) holder: String,
    pub(super) age: Option<Figure<Duration>>,
    pub(super) left: Option<Duration>,
    /// `None`: the store does not know.
    pub(super) waiters: Option<usize>,
    pub(super) grants: Option<Figure<f64>>,
    pub(super) wait: Option<Figure<Duration>>,
    pub(super) hold: Option<Figure<Duration>>,
    pub(super) lost: Option<u64>,
}

/// A row of the table of templates, as the services count it.
#[derive(Clone, Debug)]
pub(super) struct TemplateRow {
    pub(super) template: String,
    pub(super) counted: Counted,
}

/// What a table is sorted by. The greatest comes first, except for names and for the time left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// The most waiters first; of rows with as many, the one with the most grants.
    #[default]
    Waiters,
    Name,
    Age,
    Left,
    Grants,
    Wait,
    Hold,
    Lost,
}

impl Sort {
    /// In the order in which the keys `s` and `S` go through them.
    pub(super) const OF_KEYS: [Self; 8] = [
        Self::Waiters,
        Self::Grants,
        Self::Wait,
        Self::Hold,
        Self::Lost,
        Self::Age,
        Self::Left,
        Self::Name,
    ];
    pub(super) const OF_TEMPLATES: [Self; 6] = [
        Self::Waiters,
        Self::Grants,
        Self::Wait,
        Self::Hold,
        Self::Lost,
        Self::Name,
    ];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Waiters => "waiters",
            Self::Name => "name",
            Self::Age => "age",
            Self::Left => "time left",
            Self::Grants => "grants",
            Self::Wait => "wait",
            Self::Hold => "hold",
            Self::Lost => "losses",
        }
    }
}

/// The rows of the keys that the last look has seen and of those that were held lately, with what
/// the services count of them.
pub(super) fn of_keys(look: &Look, samples: &Samples, services: &Services) -> Vec<KeyRow> {
    let templates = services.templates();
    let held: BTreeMap<_, _> = look.locks.iter().map(|lock| (&lock.key, lock)).collect();
    let gone = samples.keys().filter(|key| !held.contains_key(key));
    let gone = gone.map(|key| (key, None));
    let all = held.iter().map(|(key, lock)| (*key, Some(*lock)));
    all.chain(gone)
        .map(|(key, lock)| key_row(key, lock, look, samples, &templates))
        .collect()
}

fn key_row(
    key: &str,
    lock: Option<&LockInfo>,
    look: &Look,
    samples: &Samples,
    templates: &BTreeMap<String, Counted>,
) -> KeyRow {
    let seen = samples.of(key, look.at);
    // What is counted of a template with many keys says nothing about one of them.
    let counted = match template_of(key, templates.keys()) {
        Some((template, true)) => templates.get(template),
        _ => None,
    };
    let time = |times: fn(&Counted) -> Times| {
        let mean = counted.and_then(|counted| times(counted).mean);
        mean.map(Figure::counted)
    };
    let first = lock.and_then(|lock| show::holders(lock).next());
    let age = first
        .and_then(show::begun)
        .map(|(moment, by_store)| Figure {
            value: look.clock.duration_since(moment).unwrap_or_default(),
            is_sample: !by_store,
        });
    let grants = counted.and_then(|counted| counted.grants);
    KeyRow {
        key: key.to_owned(),
        mode: lock.map_or_else(|| "free".to_owned(), show::mode),
        holder: lock.map_or_else(show::nothing, show::holder),
        age,
        left: lock.and_then(show::left),
        // Nobody waits for a free lock.
        waiters: lock.map_or(seen.knows_waiters.then_some(0), |lock| lock.waiters),
        grants: grants.map(Figure::counted).or(seen.grants),
        wait: time(|counted| counted.wait).or(seen.wait),
        hold: time(|counted| counted.hold).or(seen.hold),
        lost: counted.and_then(|counted| counted.lost),
    }
}

/// The rows of all templates that the services know.
pub(super) fn of_templates(services: &Services) -> Vec<TemplateRow> {
    let templates = services.templates().into_iter();
    let row = |(template, counted)| TemplateRow { template, counted };
    templates.map(row).collect()
}

/// A row of one of the tables.
pub(super) trait Row {
    /// By which it is found, filtered and chosen.
    fn name(&self) -> &str;
    /// Which of the two comes first.
    fn compare(&self, other: &Self, by: Sort) -> Ordering;
}

/// Sorts the rows. Those that are equal are sorted by name.
pub(super) fn arrange<R: Row>(rows: &mut [R], by: Sort, reversed: bool) {
    rows.sort_by(|one, other| {
        let order = one.compare(other, by);
        let order = if reversed { order.reverse() } else { order };
        order.then_with(|| one.name().cmp(other.name()))
    });
}

impl Row for KeyRow {
    fn name(&self) -> &str {
        &self.key
    }

    fn compare(&self, other: &Self, by: Sort) -> Ordering {
        let grants = || Figure::descending(self.grants.as_ref(), other.grants.as_ref());
        match by {
            Sort::Waiters => other.waiters.cmp(&self.waiters).then_with(grants),
            Sort::Name => self.key.cmp(&other.key),
            Sort::Age => Figure::descending(self.age.as_ref(), other.age.as_ref()),
            Sort::Left => {
                let left = |row: &Self| row.left.unwrap_or(Duration::MAX);
                left(self).cmp(&left(other))
            }
            Sort::Grants => grants(),
            Sort::Wait => Figure::descending(self.wait.as_ref(), other.wait.as_ref()),
            Sort::Hold => Figure::descending(self.hold.as_ref(), other.hold.as_ref()),
            Sort::Lost => other.lost.cmp(&self.lost),
        }
    }
}

impl Row for TemplateRow {
    fn name(&self) -> &str {
        &self.template
    }

    fn compare(&self, other: &Self, by: Sort) -> Ordering {
        let (one, other) = (&self.counted, &other.counted);
        let grants = || {
            let (one, other) = (one.grants.unwrap_or(-1.0), other.grants.unwrap_or(-1.0));
            other.total_cmp(&one)
        };
        match by {
            Sort::Name | Sort::Age | Sort::Left => Ordering::Equal,
            Sort::Waiters => other.waiting.cmp(&one.waiting).then_with(grants),
            Sort::Grants => grants(),
            Sort::Wait => other.wait.mean.cmp(&one.wait.mean),
            Sort::Hold => other.hold.mean.cmp(&one.hold.mean),
            Sort::Lost => other.lost.cmp(&one.lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use dlock::backend::{HolderInfo, Mode};

    use super::*;

    /// A store that does not say how many wait for a held lock does not say it for a free one.
    #[test]
    fn waiters_of_a_free_key_are_as_unknown_as_before() {
        for (knows, waiters) in [(true, Some(0)), (false, None)] {
            let mut samples = Samples::default();
            let begun = std::time::Instant::now();
            let look = |second: u32, locks| Look {
                at: begun + Duration::from_secs(second.into()),
                clock: SystemTime::UNIX_EPOCH + Duration::from_secs((1000 + second).into()),
                locks,
                others: 0,
            };
            let holder = HolderInfo::new("somebody".to_owned(), None);
            let mut held = LockInfo::new("k".to_owned(), Mode::Write, vec![holder], 3);
            if !knows {
                held.waiters = None;
            }
            let looks = [
                look(0, Vec::new()),
                look(1, vec![held]),
                look(2, Vec::new()),
            ];
            for look in &looks {
                samples.add(look);
            }
            let services = Services::new(std::iter::empty());
            let rows = of_keys(&looks[2], &samples, &services);
            let [row] = &rows[..] else {
                panic!("{rows:?}");
            };
            assert_eq!((&*row.mode, row.waiters), ("free", waiters));
        }
    }
}
