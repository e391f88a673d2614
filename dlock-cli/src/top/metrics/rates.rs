//! What successive answers of services tell of the time between them.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::counters::{Counters, Times, counters, whole};
use super::text::Series;
use crate::top::samples::WINDOW;

/// The services that were named, and what they have counted.
#[derive(Debug, Default)]
pub(crate) struct Services(Vec<Service>);

#[derive(Debug)]
struct Service {
    name: String,
    /// Why the last request failed. `None` also before the first answer.
    error: Option<String>,
    last: Option<(Instant, BTreeMap<String, Counters>)>,
    steps: VecDeque<Step>,
    lost: BTreeMap<String, f64>,
}

/// How much the counters rose between two answers.
#[derive(Debug)]
struct Step {
    from: Instant,
    to: Instant,
    rises: BTreeMap<String, Counters>,
}

/// What all services count of one template, or of all templates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    pub(crate) held: u64,
    pub(crate) waiting: u64,
    /// Grants per second. `None` before the second answer of a service.
    pub(crate) grants: Option<f64>,
    pub(crate) wait: Times,
    pub(crate) hold: Times,
    /// Losses since the first answer.
    pub(crate) lost: Option<u64>,
}

impl Services {
    pub(crate) fn new(names: impl Iterator<Item = String>) -> Self {
        let service = |name| Service {
            name,
            error: None,
            last: None,
            steps: VecDeque::new(),
            lost: BTreeMap::new(),
        };
        Self(names.map(service).collect())
    }

    /// How many were named.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those that do not answer, and why.
    pub(crate) fn silent(&self) -> impl Iterator<Item = (&str, &str)> {
        let silent = self.0.iter();
        silent.filter_map(|service| Some((&*service.name, service.error.as_deref()?)))
    }

    /// Adds an answer of the service of this number.
    pub(crate) fn add(&mut self, number: usize, at: Instant, answer: Result<Vec<Series>, String>) {
        let Some(service) = self.0.get_mut(number) else {
            return;
        };
        match answer {
            Ok(series) => {
                service.error = None;
                service.step(at, counters(series));
            }
            Err(error) => {
                service.error = Some(error);
                // Nobody knows how many hold or wait now.
                for counters in service
                    .last
                    .iter_mut()
                    .flat_map(|(_, all)| all.values_mut())
                {
                    (counters.held, counters.waiting) = (0.0, 0.0);
                }
            }
        }
        service.drop_before(at.checked_sub(WINDOW));
    }

    /// What the services count of each template.
    pub(crate) fn templates(&self) -> BTreeMap<String, Counted> {
        let last = self.0.iter().flat_map(|service| &service.last);
        let names = last.flat_map(|(_, templates)| templates.keys().cloned());
        let mut templates: BTreeMap<_, _> = names.map(|name| (name, Counted::default())).collect();
        for (name, counted) in &mut templates {
            *counted = self.counted(|template| template == name);
        }
        templates
    }

    /// What the services count of all templates together. `None` before the first answer.
    pub(crate) fn total(&self) -> Option<Counted> {
        let answered = self.0.iter().any(|service| service.last.is_some());
        answered.then(|| self.counted(|_| true))
    }

    fn counted(&self, of: impl Fn(&str) -> bool) -> Counted {
        let (mut now, mut rise) = (Counters::default(), Counters::default());
        let (mut grants, mut lost) = (None, None);
        for service in &self.0 {
            let last = service.last.iter().flat_map(|(_, templates)| templates);
            for (_, counters) in last.filter(|(template, _)| of(template)) {
                now.held += counters.held;
                now.waiting += counters.waiting;
            }
            let steps = service.steps.iter();
            let rises = steps.flat_map(|step| &step.rises);
            let mut risen = Counters::default();
            for (_, counters) in rises.filter(|(template, _)| of(template)) {
                risen.add(counters);
            }
            if let Some(watched) = service.watched() {
                *grants.get_or_insert(0.0) += risen.granted / watched.as_secs_f64();
                let all = service.lost.iter().filter(|(template, _)| of(template));
                *lost.get_or_insert(0.0) += all.map(|(_, lost)| lost).sum::<f64>();
            }
            rise.add(&risen);
        }
        Counted {
            held: whole(now.held),
            waiting: whole(now.waiting),
            grants,
            wait: rise.wait.times(),
            hold: rise.hold.times(),
            lost: lost.map(whole),
        }
    }
}

impl Service {
    fn step(&mut self, at: Instant, now: BTreeMap<String, Counters>) {
        if let Some((from, before)) = &self.last {
            let none = Counters::default();
            let rise = |(template, now): (&String, &Counters)| {
                let before = before.get(template).unwrap_or(&none);
                (template.clone(), now.risen_from(before))
            };
            let rises: BTreeMap<_, _> = now.iter().map(rise).collect();
            for (template, rise) in &rises {
                *self.lost.entry(template.clone()).or_default() += rise.lost;
            }
            let from = *from;
            self.steps.push_back(Step {
                from,
                to: at,
                rises,
            });
        }
        self.last = Some((at, now));
    }

    fn drop_before(&mut self, earliest: Option<Instant>) {
        self.steps
            .retain(|step| earliest.is_none_or(|earliest| step.to > earliest));
    }

    /// The time from the beginning of the first step to the end of the last one.
    fn watched(&self) -> Option<Duration> {
        let (first, last) = (self.steps.front()?, self.steps.back()?);
        let watched = last.to.duration_since(first.from);
        (!watched.is_zero()).then_some(watched)
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::parse;
    use super::*;
    use crate::top::metrics::counters::Bound;

    const SECOND: Duration = Duration::from_secs(1);

    /// The answer of a service that has counted this.
    fn exported(granted: u32, lost: u32, waits: [u32; 3]) -> Vec<Series> {
        let [fast, slow, all] = waits;
        let text = format!(
            "dlock_acquisitions_total{{template=\"a:<x>\",mode=\"write\",outcome=\"granted\"}} {granted}\n\
             dlock_acquisitions_total{{template=\"a:<x>\",mode=\"write\",outcome=\"busy\"}} 77\n\
             dlock_losses_total{{template=\"a:<x>\",reason=\"gone\"}} {lost}\n\
             dlock_losses_total{{template=\"a:<x>\",reason=\"expired\"}} 0\n\
             dlock_held{{template=\"a:<x>\"}} 3\ndlock_waiting{{template=\"a:<x>\"}} 4\n\
             dlock_wait_seconds_sum{{template=\"a:<x>\"}} {}\n\
             dlock_wait_seconds_count{{template=\"a:<x>\"}} {all}\n\
             dlock_wait_seconds_bucket{{template=\"a:<x>\",le=\"0.1\"}} {fast}\n\
             dlock_wait_seconds_bucket{{template=\"a:<x>\",le=\"1\"}} {slow}\n\
             dlock_wait_seconds_bucket{{template=\"a:<x>\",le=\"+Inf\"}} {all}\n",
            f64::from(all) / 2.0,
        );
        parse(&text).expect("metrics")
    }

    fn services(number: usize) -> (Instant, Services) {
        let names = (0..number).map(|number| number.to_string());
        (Instant::now(), Services::new(names))
    }

    #[test]
    fn one_answer_tells_what_is_and_not_what_happens() {
        let (start, mut services) = services(1);
        assert_eq!(services.total(), None);
        services.add(0, start, Ok(exported(100, 5, [1, 1, 1])));
        let counted = services.total().expect("an answer");
        assert_eq!((counted.held, counted.waiting), (3, 4));
        assert_eq!((counted.grants, counted.lost), (None, None));
        assert_eq!(counted.wait, Times::default());
    }

    #[test]
    fn two_answers_tell_what_happened_between_them() {
        let (start, mut services) = services(2);
        for number in 0..2 {
            services.add(number, start, Ok(exported(100, 5, [10, 10, 10])));
            let more = exported(120, 6, [100, 109, 110]);
            services.add(number, start + SECOND * 2, Ok(more));
        }
        let all = services.templates();
        let counted = &all["a:<x>"];
        assert_eq!((counted.held, counted.waiting), (6, 8));
        assert_eq!((counted.grants, counted.lost), (Some(20.0), Some(2)));
        assert_eq!(counted.wait.mean, Some(SECOND / 2));
        assert_eq!(counted.wait.p99, Some(Bound::AtMost(SECOND)));
        assert_eq!(counted.hold, Times::default());
    }

    #[test]
    fn more_than_the_last_bound_is_told_so() {
        let (start, mut services) = services(1);
        services.add(0, start, Ok(exported(0, 0, [0, 0, 0])));
        services.add(0, start + SECOND, Ok(exported(9, 0, [1, 2, 9])));
        let counted = services.total().expect("an answer");
        assert_eq!(counted.wait.p99, Some(Bound::MoreThan(SECOND)));
    }

    #[test]
    fn a_service_that_starts_again_counts_from_zero() {
        let (start, mut services) = services(1);
        services.add(0, start, Ok(exported(100, 5, [10, 10, 10])));
        services.add(0, start + SECOND, Ok(exported(4, 1, [2, 2, 2])));
        let counted = services.total().expect("an answer");
        assert_eq!((counted.grants, counted.lost), (Some(4.0), Some(1)));
        assert_eq!(counted.wait.mean, Some(SECOND / 2));
    }

    #[test]
    fn a_series_that_appears_has_risen_from_zero() {
        let (start, mut services) = services(1);
        services.add(0, start, Ok(Vec::new()));
        services.add(0, start + SECOND, Ok(exported(4, 1, [2, 2, 2])));
        let counted = services.total().expect("an answer");
        assert_eq!((counted.grants, counted.lost), (Some(4.0), Some(1)));
    }

    #[test]
    fn who_does_not_answer_is_told() {
        let (start, mut services) = services(2);
        services.add(0, start, Ok(exported(1, 0, [0, 0, 0])));
        services.add(0, start, Err("refused".to_owned()));
        assert_eq!(services.silent().collect::<Vec<_>>(), [("0", "refused")]);
        assert_eq!(services.total().expect("an answer").held, 0);
        services.add(0, start + SECOND, Ok(exported(3, 0, [0, 0, 0])));
        assert_eq!(services.silent().count(), 0);
        assert_eq!(services.total().expect("an answer").grants, Some(2.0));
    }

    #[test]
    fn the_past_is_forgotten_but_for_losses() {
        let (start, mut services) = services(1);
        services.add(0, start, Ok(exported(0, 0, [0, 0, 0])));
        services.add(0, start + SECOND, Ok(exported(60, 2, [0, 0, 0])));
        for second in [61, 62] {
            services.add(0, start + SECOND * second, Ok(exported(60, 2, [0, 0, 0])));
        }
        let counted = services.total().expect("an answer");
        assert_eq!((counted.grants, counted.lost), (Some(0.0), Some(2)));
    }
}
