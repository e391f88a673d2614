//! What a service has counted, by template.

use std::collections::BTreeMap;
use std::time::Duration;

use super::text::Series;

/// What a service counts of one template.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counters {
    pub(super) granted: f64,
    pub(super) lost: f64,
    pub(super) wait: Histogram,
    pub(super) hold: Histogram,
    pub(super) held: f64,
    pub(super) waiting: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    pub(super) sum: f64,
    pub(super) count: f64,
    /// How many were not longer than a bound, by the text of the bound.
    pub(super) buckets: BTreeMap<String, f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    pub(crate) mean: Option<Duration>,
    /// 99 of 100 were not longer than this. `None` without buckets, as summaries have none.
    pub(crate) p99: Option<Bound>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtMost(Duration),
    MoreThan(Duration),
}

impl Counters {
    pub(super) fn add(&mut self, other: &Self) {
        self.granted += other.granted;
        self.lost += other.lost;
        self.wait.add(&other.wait);
        self.hold.add(&other.hold);
    }

    pub(super) fn risen_from(&self, before: &Self) -> Self {
        Self {
            granted: risen(self.granted, before.granted),
            lost: risen(self.lost, before.lost),
            wait: self.wait.risen_from(&before.wait),
            hold: self.hold.risen_from(&before.hold),
            held: 0.0,
            waiting: 0.0,
        }
    }
}

impl Histogram {
    pub(super) fn add(&mut self, other: &Self) {
        // The buckets of two services can be added only if they have the same bounds.
        if self.count == 0.0 {
            self.buckets.clone_from(&other.buckets);
        } else if other.count > 0.0 {
            if self.buckets.keys().eq(other.buckets.keys()) {
                for (bound, count) in &other.buckets {
                    *self.buckets.entry(bound.clone()).or_default() += count;
                }
            } else {
                self.buckets.clear();
            }
        }
        self.sum += other.sum;
        self.count += other.count;
    }

    pub(super) fn risen_from(&self, before: &Self) -> Self {
        // The count is lower after a restart of the service. Then the sum and all buckets began at
        // zero too, whether they are lower or not.
        let again = self.count < before.count;
        let rise = |now: f64, before: f64| if again { now } else { risen(now, before) };
        let bucket = |(bound, now): (&String, &f64)| {
            let before = before.buckets.get(bound).copied().unwrap_or_default();
            (bound.clone(), rise(*now, before))
        };
        Self {
            sum: rise(self.sum, before.sum),
            count: rise(self.count, before.count),
            buckets: self.buckets.iter().map(bucket).collect(),
        }
    }

    pub(super) fn times(&self) -> Times {
        if self.count <= 0.0 {
            return Times::default();
        }
        Times {
            mean: seconds(self.sum / self.count),
            p99: self.p99(),
        }
    }

    fn p99(&self) -> Option<Bound> {
        let buckets = self.buckets.iter();
        let buckets = buckets.map(|(bound, count)| Some((bound.parse::<f64>().ok()?, *count)));
        let mut buckets = buckets.collect::<Option<Vec<_>>>()?;
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let enough = |(_, count): &&(f64, f64)| *count >= self.count * 0.99;
        let finite = |(bound, _): &&(f64, f64)| bound.is_finite();
        let most = buckets.iter().rfind(finite)?;
        match buckets.iter().filter(finite).find(enough) {
            Some((bound, _)) => seconds(*bound).map(Bound::AtMost),
            None => seconds(most.0).map(Bound::MoreThan),
        }
    }
}

/// How much a counter rose. If it is lower than before, it began again at zero.
fn risen(now: f64, before: f64) -> f64 {
    match now < before {
        true => now,
        false => now - before,
    }
}

fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

/// Rounds a number that stands for a count.
pub(super) fn whole(number: f64) -> u64 {
    // The cast saturates, and makes NaN 0.
    number.round() as u64
}

/// What a service counts, by template.
pub(super) fn counters(series: Vec<Series>) -> BTreeMap<String, Counters> {
    let mut templates = BTreeMap::<String, Counters>::new();
    for Series {
        name,
        mut labels,
        value,
    } in series
    {
        let Some(template) = labels.remove("template").filter(|_| value.is_finite()) else {
            continue;
        };
        let counters = templates.entry(template).or_default();
        let bound = labels.get("le").cloned();
        let to = match &*name {
            "dlock_acquisitions_total" => match labels.get("outcome").map(|outcome| &**outcome) {
                Some("granted") => &mut counters.granted,
                _ => continue,
            },
            "dlock_losses_total" => &mut counters.lost,
            "dlock_held" => &mut counters.held,
            "dlock_waiting" => &mut counters.waiting,
            "dlock_wait_seconds_sum" => &mut counters.wait.sum,
            "dlock_wait_seconds_count" => &mut counters.wait.count,
            "dlock_hold_seconds_sum" => &mut counters.hold.sum,
            "dlock_hold_seconds_count" => &mut counters.hold.count,
            "dlock_wait_seconds_bucket" => match bound {
                Some(bound) => counters.wait.buckets.entry(bound).or_default(),
                None => continue,
            },
            "dlock_hold_seconds_bucket" => match bound {
                Some(bound) => counters.hold.buckets.entry(bound).or_default(),
                None => continue,
            },
            _ => continue,
        };
        *to += value;
    }
    templates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_differ_are_not_put_together() {
        let histogram = |bound: &str| Histogram {
            sum: 1.0,
            count: 1.0,
            buckets: BTreeMap::from([(bound.to_owned(), 1.0)]),
        };
        let mut all = histogram("1");
        all.add(&histogram("2"));
        assert_eq!(all.times().mean, Some(Duration::from_secs(1)));
        assert_eq!(all.times().p99, None);
    }
}
