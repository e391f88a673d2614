//! What is shown, and what keys do to it. It knows neither the store nor the screen.

use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use dlock::backend::LockInfo;

use super::metrics::rates::Services;
use super::metrics::template::template_of;
use super::metrics::text::Series;
use super::rows::{self, KeyRow, Sort, TemplateRow};
use super::samples::{Look, Samples};
use super::table::Table;
use crate::break_lock::who;
use crate::show;

/// All that is shown.
#[derive(Debug)]
pub(super) struct Model {
    /// The time between two looks.
    pub(super) interval: Duration,
    pub(super) look: Look,
    pub(super) samples: Samples,
    pub(super) services: Services,
    /// The chosen key and its lock, from a look at this lock alone.
    pub(super) chosen: Option<(String, Option<LockInfo>)>,
    pub(super) outage: Option<Outage>,
    pub(super) view: View,
    pub(super) prompt: Prompt,
    /// What became of the last command. It is shown until the next key is pressed.
    pub(super) notice: Option<String>,
    pub(super) keys: Table<KeyRow>,
    pub(super) templates: Table<TemplateRow>,
}

/// The store does not answer.
#[derive(Debug)]
pub(super) struct Outage {
    pub(super) since: Instant,
    pub(super) error: String,
}

/// Which table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Keys,
    Templates,
}

/// What the next key of the keyboard is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    None,
    /// The filter is being typed.
    Filter,
    Help,
    /// The user is asked whether to break this lease.
    Break(Lease),
}

/// The lease that the user was asked about. The next holder has another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) key: String,
    pub(super) owner: String,
    /// What is shown of it.
    pub(super) who: String,
    pub(super) age: String,
}

/// What the program is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// Breaks this lease, if its holder still has it.
    Break(Lease),
    /// As `^C` does elsewhere.
    Interrupt,
    /// As `^Z` does elsewhere.
    Stop,
    /// Draws the whole screen again, because something else may have written there.
    Redraw,
}

impl Model {
    pub(super) fn new(interval: Duration, services: Services, look: Look) -> Self {
        let mut model = Self {
            interval,
            look,
            samples: Samples::default(),
            services,
            chosen: None,
            outage: None,
            view: View::Keys,
            prompt: Prompt::None,
            notice: None,
            keys: Table::default(),
            templates: Table::default(),
        };
        model.samples.add(&model.look);
        model.arrange();
        model
    }

    /// The store has answered.
    pub(super) fn looked(&mut self, look: Look) {
        self.samples.add(&look);
        self.look = look;
        self.outage = None;
        self.arrange();
    }

    /// The store has not answered.
    pub(super) fn failed(&mut self, at: Instant, error: String) {
        let since = self.outage.as_ref().map_or(at, |outage| outage.since);
        self.outage = Some(Outage { since, error });
    }

    /// The service of this number has answered, or not.
    pub(super) fn scraped(
        &mut self,
        number: usize,
        at: Instant,
        answer: Result<Vec<Series>, String>,
    ) {
        self.services.add(number, at, answer);
        self.arrange();
    }

    /// The chosen key, which is also looked at by itself.
    pub(super) fn chosen_key(&self) -> Option<&str> {
        self.keys.chosen().map(|row| &*row.key)
    }

    /// The chosen lock: from the look at it alone or, before there is one, from the list.
    pub(super) fn chosen_lock(&self) -> Option<&LockInfo> {
        let key = self.chosen_key()?;
        match &self.chosen {
            Some((looked_at, lock)) if looked_at == key => lock.as_ref(),
            _ => self.look.locks.iter().find(|lock| lock.key == key),
        }
    }

    /// The template that has made the chosen key, if the services know of one.
    pub(super) fn chosen_template(&self) -> Option<&TemplateRow> {
        let key = self.chosen_key()?;
        let all = || self.templates.all();
        let (name, _) = template_of(key, all().map(|row| &row.template))?;
        all().find(|row| row.template == name)
    }

    fn arrange(&mut self) {
        let keys = rows::of_keys(&self.look, &self.samples, &self.services);
        self.keys.set(keys);
        self.templates.set(rows::of_templates(&self.services));
    }

    /// Handles a key of the keyboard.
    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Interrupt,
                KeyCode::Char('z') => Action::Stop,
                KeyCode::Char('l') => Action::Redraw,
                _ => Action::None,
            };
        }
        self.notice = None;
        match &self.prompt {
            Prompt::None => self.command(key.code),
            Prompt::Break(lease) => {
                let lease = lease.clone();
                self.prompt = Prompt::None;
                match key.code {
                    KeyCode::Char('y' | 'Y') => Action::Break(lease),
                    _ => {
                        self.notice = Some("nothing was broken".to_owned());
                        Action::None
                    }
                }
            }
            Prompt::Filter => {
                self.edit(key.code);
                Action::None
            }
            Prompt::Help => {
                self.prompt = Prompt::None;
                match key.code {
                    KeyCode::Char('q') => Action::Quit,
                    _ => Action::None,
                }
            }
        }
    }

    fn command(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.prompt = Prompt::Help,
            KeyCode::Char('/') => self.prompt = Prompt::Filter,
            KeyCode::Tab if self.services.len() > 0 => {
                self.view = match self.view {
                    View::Keys => View::Templates,
                    View::Templates => View::Keys,
                };
            }
            KeyCode::Char('b') if self.view == View::Keys => self.ask_to_break(),
            key => match self.view {
                View::Keys => self.keys.press(key, &Sort::OF_KEYS),
                View::Templates => self.templates.press(key, &Sort::OF_TEMPLATES),
            },
        }
        Action::None
    }

    fn ask_to_break(&mut self) {
        let Some(key) = self.chosen_key().map(ToOwned::to_owned) else {
            return;
        };
        let lock = self.chosen_lock();
        let holders = lock.map_or(&[][..], |lock| &lock.holders);
        match holders {
            [] => self.notice = Some("nobody holds it".to_owned()),
            [holder] => {
                self.prompt = Prompt::Break(Lease {
                    key,
                    owner: holder.owner.clone(),
                    who: who(holder.process.as_ref(), &holder.owner),
                    age: show::age(holder),
                });
            }
            several => {
                let number = several.len();
                let notice = format!(
                    "{number} hold it together; `dlock break KEY --holder ID` breaks one lease"
                );
                self.notice = Some(notice);
            }
        }
    }

    /// Shows what became of the attempt to break a lease.
    pub(super) fn tried_to_break(&mut self, lease: &Lease, broken: Result<bool, String>) {
        let Lease { key, who, .. } = lease;
        self.notice = Some(match broken {
            Ok(true) => format!("{key}: broken; {who} is told at its next renewal"),
            Ok(false) => format!("{key}: {who} does not hold it any more; nothing was broken"),
            Err(error) => error,
        });
    }

    fn edit(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.prompt = Prompt::None,
            KeyCode::Esc => {
                self.prompt = Prompt::None;
                self.change_filter(String::clear);
            }
            KeyCode::Backspace => self.change_filter(|filter| {
                filter.pop();
            }),
            KeyCode::Char(letter) => self.change_filter(|filter| filter.push(letter)),
            _ => {}
        }
    }

    fn change_filter(&mut self, change: impl FnOnce(&mut String)) {
        match self.view {
            View::Keys => self.keys.change_filter(change),
            View::Templates => self.templates.change_filter(change),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::LazyLock;
    use std::time::SystemTime;

    use dlock::backend::{HolderInfo, Mode};

    use super::*;

    /// The same moment for a whole test. Otherwise a slow machine would make a lock older between
    /// two looks, and the second would look like another grant.
    static NOW: LazyLock<(Instant, SystemTime)> =
        LazyLock::new(|| (Instant::now(), SystemTime::now()));

    /// A lock with so many waiters.
    pub(crate) fn lock(key: &str, waiters: usize) -> LockInfo {
        let asked = NOW.1 - Duration::from_secs(125);
        let asked = asked.duration_since(SystemTime::UNIX_EPOCH);
        let asked = asked.expect("after 1970").as_millis();
        let owner = format!("00000000000000ff.{waiters}@web-3,4211,shop,{asked}");
        let holder = HolderInfo::new(owner, Some(Duration::from_secs(29)));
        LockInfo::new(key.to_owned(), Mode::Write, vec![holder], waiters)
    }

    pub(crate) fn look(locks: Vec<LockInfo>) -> Look {
        let (at, clock) = *NOW;
        Look {
            at,
            clock,
            locks,
            others: 0,
        }
    }

    /// A model of these keys, each with more waiters than the one before.
    pub(crate) fn model(keys: &[&str]) -> Model {
        let locks = keys.iter().enumerate();
        let locks = locks.map(|(waiters, key)| lock(key, waiters)).collect();
        let names = ["web-1:9000".to_owned()].into_iter();
        Model::new(Duration::from_secs(2), Services::new(names), look(locks))
    }

    fn typed(model: &mut Model, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\u{1b}' => KeyCode::Esc,
                '\u{8}' => KeyCode::Backspace,
                letter => KeyCode::Char(letter),
            };
            assert_eq!(model.press(KeyEvent::from(code)), Action::None, "{key:?}");
        }
    }

    fn shown(model: &Model) -> Vec<&str> {
        model.keys.rows().iter().map(|row| &*row.key).collect()
    }

    #[test]
    fn the_hottest_comes_first_and_is_chosen() {
        let mut model = model(&["a", "b", "c"]);
        assert_eq!(shown(&model), ["c", "b", "a"]);
        assert_eq!(model.chosen_key(), Some("c"));
        typed(&mut model, "jj");
        assert_eq!(model.chosen_key(), Some("a"));
        typed(&mut model, "j");
        assert_eq!(model.chosen_key(), Some("a"));
        typed(&mut model, "k");
        assert_eq!(model.chosen_key(), Some("b"));
        typed(&mut model, "G");
        assert_eq!(model.chosen_key(), Some("a"));
        typed(&mut model, "g");
        assert_eq!(model.chosen_key(), Some("c"));
    }

    #[test]
    fn what_is_chosen_stays_chosen() {
        let mut model = model(&["a", "b", "c"]);
        model.looked(look(vec![lock("a", 2), lock("b", 1), lock("c", 0)]));
        assert_eq!(model.chosen_key(), Some("a"), "nobody has chosen yet");
        typed(&mut model, "j");
        model.looked(look(vec![lock("b", 9), lock("c", 1), lock("a", 2)]));
        assert_eq!(shown(&model), ["b", "a", "c"]);
        assert_eq!(model.chosen_key(), Some("b"));
    }

    #[test]
    fn what_has_gone_is_free_and_then_forgotten() {
        let mut model = model(&["a", "b"]);
        let later = |seconds| {
            let mut look = look(vec![lock("a", 0)]);
            look.at += Duration::from_secs(seconds);
            look.clock += Duration::from_secs(seconds);
            look
        };
        let mut second = later(1);
        second.locks.push(lock("c", 7));
        model.looked(second);
        model.looked(later(2));
        assert_eq!(shown(&model), ["c", "a", "b"]);
        assert_eq!(model.keys.rows()[0].mode, "free");
        // Nothing was measured of `b`, but it was held a moment ago.
        assert_eq!(model.keys.rows()[2].mode, "free");
        model.looked(later(100));
        assert_eq!(shown(&model), ["a"]);
        assert_eq!(model.chosen_key(), Some("a"));
    }

    #[test]
    fn a_filter_is_typed() {
        let mut model = model(&["stock:1", "stock:2", "order:1"]);
        typed(&mut model, "/stockq\u{8}:1");
        assert_eq!(shown(&model), ["stock:1"]);
        assert_eq!(model.prompt, Prompt::Filter);
        typed(&mut model, "\n");
        assert_eq!(model.prompt, Prompt::None);
        assert_eq!(shown(&model), ["stock:1"]);
        assert_eq!(model.chosen_key(), Some("stock:1"));
        typed(&mut model, "/x");
        assert_eq!(model.chosen_key(), None);
        typed(&mut model, "\u{1b}");
        assert_eq!(shown(&model).len(), 3);
    }

    #[test]
    fn the_order_is_chosen() {
        let mut model = model(&["b", "a", "c"]);
        typed(&mut model, "S");
        assert_eq!(model.keys.sort, Sort::Name);
        assert_eq!(shown(&model), ["a", "b", "c"]);
        typed(&mut model, "r");
        assert_eq!(shown(&model), ["c", "b", "a"]);
        typed(&mut model, "sr");
        assert_eq!(model.keys.sort, Sort::Waiters);
        assert_eq!(shown(&model), ["c", "a", "b"]);
        for sort in Sort::OF_KEYS {
            assert_eq!(model.keys.sort, sort);
            assert_eq!(shown(&model).len(), 3);
            typed(&mut model, "s");
        }
    }

    #[test]
    fn keys_end_it() {
        let mut model = model(&[]);
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!(model.press(control('c')), Action::Interrupt);
        assert_eq!(model.press(control('z')), Action::Stop);
        let quit = KeyEvent::from(KeyCode::Char('q'));
        for first in ["", "?"] {
            typed(&mut model, first);
            assert_eq!(model.press(quit), Action::Quit);
        }
        typed(&mut model, "/q");
        assert_eq!(model.press(control('c')), Action::Interrupt);
    }

    #[test]
    fn a_lock_is_broken_after_a_question() {
        let mut model = model(&["a", "b"]);
        let owner = model.chosen_lock().expect("a lock").holders[0]
            .owner
            .clone();
        typed(&mut model, "b");
        assert!(matches!(&model.prompt, Prompt::Break(lease) if lease.key == "b"));
        // Somebody else has it by now, about whom the user was not asked.
        model.looked(look(vec![lock("b", 7)]));
        let yes = KeyEvent::from(KeyCode::Char('y'));
        let Action::Break(lease) = model.press(yes) else {
            panic!("it is to be broken");
        };
        assert_eq!((&*lease.key, &lease.owner), ("b", &owner));
        assert_eq!(model.press(yes), Action::None);
        for answer in ["n", "q", "\n", "\u{1b}"] {
            typed(&mut model, "b");
            typed(&mut model, answer);
            assert_eq!(model.prompt, Prompt::None);
            assert!(model.notice.is_some());
        }
        typed(&mut model, "j");
        assert_eq!(model.notice, None);
    }

    #[test]
    fn one_of_several_holders_is_not_chosen_by_chance() {
        let mut model = model(&[]);
        typed(&mut model, "b");
        assert_eq!((&model.prompt, &model.notice), (&Prompt::None, &None));
        let mut shared = lock("a", 0);
        shared.holders.extend(lock("a", 1).holders);
        model.looked(look(vec![shared]));
        typed(&mut model, "b");
        assert_eq!(model.prompt, Prompt::None);
        assert!(
            model
                .notice
                .is_some_and(|notice| notice.contains("2 hold it"))
        );
    }

    #[test]
    fn an_outage_lasts_until_there_is_an_answer() {
        let mut model = model(&["a"]);
        let began = Instant::now();
        for second in 0..3 {
            let at = began + Duration::from_secs(second);
            model.failed(at, "down".to_owned());
        }
        assert_eq!(
            model.outage.as_ref().map(|outage| outage.since),
            Some(began)
        );
        assert_eq!(shown(&model), ["a"]);
        model.looked(look(Vec::new()));
        assert!(model.outage.is_none());
    }

    #[test]
    fn a_key_has_the_numbers_of_a_template_of_its_own() {
        let mut model = model(&["nightly", "stock:1"]);
        let answer = |granted: u32| {
            let series = |template: &str| Series {
                name: "dlock_acquisitions_total".to_owned(),
                labels: [("template", template), ("outcome", "granted")]
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
                value: f64::from(granted),
            };
            Ok(vec![series("nightly"), series("stock:<sku>")])
        };
        let began = Instant::now();
        model.scraped(0, began, answer(0));
        model.scraped(0, began + Duration::from_secs(2), answer(10));
        let grants = |key| {
            let row = model.keys.rows().iter().find(|row| row.key == key);
            row.and_then(|row| row.grants)
        };
        assert_eq!(
            grants("nightly").map(|rate| (rate.value, rate.is_sample)),
            Some((5.0, false))
        );
        // The numbers of a template that makes many keys say nothing about one of them.
        assert_eq!(grants("stock:1"), None);
        assert_eq!(model.chosen_key(), Some("stock:1"));
        let template = model.chosen_template().expect("a template");
        assert_eq!(template.template, "stock:<sku>");
        typed(&mut model, "\t");
        assert_eq!(model.view, View::Templates);
        assert_eq!(model.templates.rows().len(), 2);
    }
}
