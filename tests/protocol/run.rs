//! Runs a sequence at a store and at the reference, and compares them after each step.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::{self, Write as _};
use std::time::Duration;

use dlock::backend::{LockInfo, Mode, Owner, Request};
use dlock::bare::Said;
use dlock::store::{Ending, Want};

use crate::reference::{Answer, Asked, Holder, Reference, Told, Who};
use crate::rules::Rules;
use crate::sequence::{CLIENTS, KEYS, PROCESSES, Step};

/// What a process asks of its store.
pub(crate) trait Process {
    /// The token, if it was granted.
    async fn take(&mut self, request: &Request, want: Want) -> Result<(Answer, u64), String>;
    async fn renew(&mut self, requests: &[Request]) -> Result<Vec<bool>, String>;
    async fn release(&mut self, request: &Request, ending: Ending) -> Result<bool, String>;
    async fn forget(&mut self, key: &str) -> Result<bool, String>;
    /// Who of the waiters has cause to ask.
    async fn look(
        &mut self,
        key: &str,
        waiters: &[Request],
        beat: bool,
    ) -> Result<Vec<bool>, String>;
    async fn farewell(&mut self);
    async fn disown(
        &mut self,
        key: &str,
        place: &str,
        known: &HashSet<Owner>,
    ) -> Result<(), String>;
    async fn inspect(&mut self, key: &str) -> Result<Option<LockInfo>, String>;
    async fn list(&mut self, prefix: &str) -> Result<Vec<LockInfo>, String>;
    /// This process has this request.
    fn knows(&mut self, request: &Request);
    async fn says(&mut self, within: Duration) -> Option<Said>;
}

/// A real store that one sequence after the other is run at.
pub(crate) trait Scene {
    type Process: Process;

    fn rules(&self) -> Rules;
    /// One more process.
    async fn open(&mut self) -> Self::Process;
    /// Waits until the store has noticed that connections are closed, and that only these
    /// are left.
    async fn notices(&mut self, left: usize);
    /// Lets so much time pass, together with what has passed by itself, and says what is
    /// kept.
    async fn look(&mut self, pass: u64) -> Kept;
    /// What is there for longer than its lock, when everything has ended.
    async fn left(&mut self) -> Vec<String>;
    /// Everything but the tokens is forgotten. Whether its processes still do.
    async fn wipe(&mut self) -> bool;
}

/// What is kept of the locks.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) locks: BTreeMap<String, KeptLock>,
    /// What has no end.
    pub(crate) endless: Vec<String>,
    /// How much time has passed by itself besides.
    pub(crate) late: u64,
}

#[derive(Debug, Default)]
pub(crate) struct KeptLock {
    pub(crate) read: bool,
    /// When all of it ends that is not the queue, as far as the store keeps that.
    pub(crate) ends: Vec<i64>,
    /// When the queue ends, if it does.
    pub(crate) queue_ends: Option<i64>,
    pub(crate) holders: Vec<KeptHolder>,
    /// Who has done it.
    pub(crate) done: Option<KeptHolder>,
    /// Owners, first come first, if that can be seen.
    pub(crate) queue: Option<Vec<String>>,
}

#[derive(Debug)]
pub(crate) struct KeptHolder {
    pub(crate) owner: String,
    pub(crate) left: i64,
    pub(crate) unclaimed: bool,
}

/// A store may be so much later than the reference. What is set then ends by so much
/// later, so that nothing may be near its end when time has passed.
const LATE: u64 = 450;
const NEAR: u64 = LATE + 50;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// In each of so many steps, without those that were not possible.
    Agreed {
        steps: usize,
    },
    /// The steps took so long that the reference cannot say what had ended by then.
    TooLate,
    Differs(String),
}

/// What a process believes of its request.
#[derive(Clone, Default)]
struct Client {
    who: Option<Who>,
    granted: bool,
    ended: bool,
    /// As it was told of its grant.
    place: Option<String>,
}

pub(crate) struct Run<'a, S: Scene> {
    scene: &'a mut S,
    /// None where it has died.
    processes: Vec<Option<S::Process>>,
    reference: Reference,
    requests: Vec<Request>,
    clients: Vec<Client>,
    /// The last number of each key's last grant, which outlives the run.
    tokens: &'a mut [u64; KEYS.len()],
    story: String,
    /// How long what is to be said is waited for.
    patience: Duration,
}

/// Runs it, and says how it went.
pub(crate) async fn run<S: Scene>(
    scene: &mut S,
    processes: &mut Vec<Option<S::Process>>,
    tokens: &mut [u64; KEYS.len()],
    steps: &[Step],
    patience: Duration,
) -> Outcome {
    if !scene.wipe().await {
        processes.clear();
        *tokens = [0; KEYS.len()];
    }
    processes.resize_with(PROCESSES, || None);
    for process in &mut *processes {
        let process = match process {
            Some(process) => process,
            None => process.insert(scene.open().await),
        };
        // What was said before.
        while process.says(Duration::ZERO).await.is_some() {}
    }
    let rules = scene.rules();
    let mut run = Run {
        scene,
        processes: std::mem::take(processes),
        reference: Reference::new(rules, KEYS.len(), PROCESSES),
        requests: Vec::new(),
        clients: vec![Client::default(); CLIENTS],
        tokens,
        story: String::new(),
        patience,
    };
    let mut outcome = run.all(steps).await;
    if outcome.is_err() && run.scene.look(0).await.late > LATE {
        // Then that is what differs.
        outcome = Err(Stop::TooLate);
    }
    *processes = run.processes;
    match outcome {
        Ok(steps) => Outcome::Agreed { steps },
        Err(Stop::TooLate) => Outcome::TooLate,
        Err(Stop::Differs(how)) => Outcome::Differs(format!("{}{how}", run.story)),
    }
}

/// One that lives.
fn at<P>(processes: &mut [Option<P>], process: usize) -> &mut P {
    processes[process]
        .as_mut()
        .expect("only who lives does something")
}

enum Stop {
    TooLate,
    Differs(String),
}

impl From<String> for Stop {
    fn from(error: String) -> Self {
        Self::Differs(error)
    }
}

/// An error that says what was expected, and what there was.
fn same<T: PartialEq + fmt::Debug>(what: &str, expected: T, found: T) -> Result<(), Stop> {
    match expected == found {
        true => Ok(()),
        false => Err(Stop::Differs(format!(
            "{what}: expected {expected:?}, found {found:?}"
        ))),
    }
}

impl<S: Scene> Run<'_, S> {
    /// How many steps it was.
    async fn all(&mut self, steps: &[Step]) -> Result<usize, Stop> {
        let mut done = 0;
        self.scene.look(0).await;
        for step in steps {
            if !self.is_possible(*step) {
                continue;
            }
            let _ = writeln!(self.story, "  {step:?}");
            let pass = self.step(*step).await?;
            self.compare(pass).await?;
            done += 1;
        }
        if self.reference.rules.dead_after.is_none() {
            // As who waits lives for ever.
            for client in 0..CLIENTS {
                self.release(client, Ending::Left).await?;
            }
        }
        // Longer than any ttl, claim and life together, and that of those who were let in
        // just then.
        for _ in 0..3 {
            let pass = self.pass(200_000);
            let _ = writeln!(self.story, "  in the end: Pass {{ ms: {pass} }}");
            self.compare(pass).await?;
        }
        same(
            "left in the end",
            Vec::<String>::new(),
            self.scene.left().await,
        )?;
        Ok(done)
    }

    /// Whether the store, and whoever does it, can do this now.
    fn is_possible(&self, step: Step) -> bool {
        let rules = self.reference.rules;
        let runs = |process: usize| !self.reference.is_closed(process);
        let client_runs = |client: usize| runs(client % PROCESSES);
        let waits = !rules.votes;
        match step {
            Step::Take {
                client, mode, want, ..
            } => {
                let again = self.clients[client].who.is_some() && !self.clients[client].ended;
                let queues = matches!(want, Want::Queue { .. });
                let first = want != Want::First
                    || match rules.first_knows_no_queue {
                        true => !again,
                        false => rules.name != "cluster",
                    } && mode == Mode::Write;
                let first_again = !again || want != Want::First || {
                    let who = self.clients[client].who.unwrap_or_default();
                    self.reference.asked[who].mode == Mode::Write
                };
                client_runs(client)
                    && first
                    && first_again
                    && (waits || !queues)
                    && (!again || rules.asks_again || queues)
            }
            Step::TakeLate { client, want } => {
                let queues = matches!(want, Want::Queue { .. });
                self.clients[client].ended
                    && client_runs(client)
                    && want != Want::First
                    && rules.asks_again
                    && (waits || !queues)
            }
            Step::Release { client, .. } => {
                self.clients[client].who.is_some() && client_runs(client)
            }
            Step::Renew { process } => runs(process),
            Step::Look { process, .. } | Step::Farewell { process } => {
                runs(process) && rules.dead_after.is_some() && waits && rules.name != "cluster"
            }
            Step::Die { process } => runs(process) && rules.notices_deaths,
            Step::Disown { client, .. } => {
                rules.disowns && client_runs(client) && self.clients[client].place.is_some()
            }
            Step::Inspect { .. } | Step::List => runs(0),
            Step::Forget { .. } => rules.once && runs(0),
            Step::Pass { .. } => true,
        }
    }

    /// Does it, and says how much time is to pass.
    async fn step(&mut self, step: Step) -> Result<u64, Stop> {
        match step {
            Step::Take {
                client,
                key,
                mode,
                ttl,
                want,
            } => {
                let last = &self.clients[client];
                let who = match last.who {
                    Some(who) if !last.ended => who,
                    _ => self.asks(client, key, mode, ttl),
                };
                self.take(client, who, want).await?;
            }
            Step::TakeLate { client, want } => {
                if let Some(who) = self.clients[client].who {
                    self.take(client, who, want).await?;
                    self.clients[client].ended = true;
                }
            }
            Step::Renew { process } => {
                let asked = self.reference.asked.iter().enumerate();
                let all: Vec<Who> = asked
                    .filter(|(_, asked)| asked.process == process)
                    .map(|(who, _)| who)
                    .collect();
                let requests: Vec<Request> =
                    all.iter().map(|&who| self.requests[who].clone()).collect();
                let renewed = at(&mut self.processes, process).renew(&requests).await?;
                let expected = all.iter().map(|&who| self.reference.renew(who));
                same("renewed", expected.collect::<Vec<_>>(), renewed)?;
            }
            Step::Release { client, ending } => self.release(client, ending).await?,
            Step::Look { process, beat } => self.look(process, beat).await?,
            Step::Farewell { process } => {
                at(&mut self.processes, process).farewell().await;
                self.reference.farewell(process);
            }
            Step::Die { process } => {
                self.processes[process] = None;
                self.scene
                    .notices(self.processes.iter().flatten().count())
                    .await;
                self.reference.close(process);
            }
            Step::Disown { client, unknown } => self.disown(client, unknown).await?,
            Step::Forget { key } => {
                let forgotten = at(&mut self.processes, 0).forget(KEYS[key]).await?;
                same("forgotten", self.reference.forget(key), forgotten)?;
            }
            Step::Inspect { key } => {
                let found = at(&mut self.processes, 0).inspect(KEYS[key]).await?;
                let expected = self.shown(key);
                same("inspected", expected, found.map(|lock| self.read(&lock)))?;
            }
            Step::List => {
                let found = at(&mut self.processes, 0).list("stock:").await?;
                let mut found: Vec<_> = found.iter().map(|lock| self.read(lock)).collect();
                found.sort();
                let expected: Vec<_> = (0..KEYS.len()).filter_map(|key| self.shown(key)).collect();
                same("listed", expected, found)?;
            }
            Step::Pass { ms } => return Ok(self.pass(ms)),
        }
        Ok(0)
    }

    /// A new request.
    fn asks(&mut self, client: usize, key: usize, mode: Mode, ttl: u64) -> Who {
        let process = client % PROCESSES;
        let mode = match mode {
            Mode::Permits(_) if !self.reference.rules.permits => Mode::Read,
            mode => mode,
        };
        let request = Request::new(KEYS[key], mode, Duration::from_millis(ttl));
        at(&mut self.processes, process).knows(&request);
        self.requests.push(request);
        self.reference.asked.push(Asked {
            key,
            process,
            mode,
            ttl,
        });
        let who = self.requests.len() - 1;
        self.clients[client] = Client {
            who: Some(who),
            ..Client::default()
        };
        who
    }

    async fn take(&mut self, client: usize, who: Who, want: Want) -> Result<(), Stop> {
        let Asked { process, key, .. } = self.reference.asked[who];
        let (answer, token) = at(&mut self.processes, process)
            .take(&self.requests[who], want)
            .await?;
        let expected = self.reference.take(who, want);
        same("answer", expected, answer)?;
        if answer == Answer::Granted {
            let last = self.tokens[key];
            if token <= last {
                return Err(Stop::Differs(format!("token {token} behind {last}")));
            }
            self.tokens[key] = token + dlock::TOKENS_PER_GRANT - 1;
            let request = self.requests[who].clone();
            self.requests[who] = request.with_token(token.into());
        }
        self.clients[client].granted = answer == Answer::Granted;
        // Who is told of this has nothing to give back.
        self.clients[client].ended |= answer == Answer::Done;
        Ok(())
    }

    async fn release(&mut self, client: usize, ending: Ending) -> Result<(), Stop> {
        let Some(who) = self.clients[client].who else {
            return Ok(());
        };
        let rules = self.reference.rules;
        let ending = match ending {
            // Who may have a place gives that back.
            _ if !self.clients[client].granted => Ending::Left,
            Ending::Outvoted if !rules.votes => Ending::Released,
            Ending::Done(_) if !rules.once || self.reference.asked[who].mode != Mode::Write => {
                Ending::Released
            }
            ending => ending,
        };
        let process = self.reference.asked[who].process;
        let had = at(&mut self.processes, process)
            .release(&self.requests[who], ending)
            .await?;
        same("released", self.reference.release(who, ending), had)?;
        self.clients[client].ended = true;
        Ok(())
    }

    async fn look(&mut self, process: usize, beat: bool) -> Result<(), Stop> {
        let rules = self.reference.rules;
        for (key, name) in KEYS.iter().enumerate() {
            let waits = self
                .clients
                .iter()
                .filter(|client| !client.granted && !client.ended);
            let waits = waits.filter_map(|client| client.who).filter(|&who| {
                let asked = self.reference.asked[who];
                asked.process == process && asked.key == key
            });
            let waits: Vec<Who> = waits.collect();
            let waiters: Vec<Request> = waits
                .iter()
                .map(|&who| self.requests[who].clone())
                .collect();
            let woken = at(&mut self.processes, process)
                .look(name, &waiters, beat)
                .await?;
            if beat {
                self.reference.beat(process, key);
            }
            if rules.reserved.is_some() {
                let cause = waits.iter().map(|&who| self.reference.has_cause(who, beat));
                same("have cause to ask", cause.collect::<Vec<_>>(), woken)?;
                continue;
            }
            // What it holds without knowing, or is free for anybody, is asked for.
            let (holders, _) = self.reference.look(key);
            let is_free = holders.is_empty();
            for (&who, &woken) in waits.iter().zip(&woken) {
                if holders.iter().any(|holder| {
                    holder.who == who && self.reference.asked[who].mode == Mode::Write
                }) {
                    same("it is told that it holds the lock", true, woken)?;
                }
            }
            if self.reference.done(key).is_some() {
                let all = woken.iter().all(|&woken| woken);
                same("all are told that it is done", true, all)?;
            } else if is_free && !waits.is_empty() {
                same(
                    "somebody is told that it is free",
                    true,
                    woken.contains(&true),
                )?;
            }
        }
        Ok(())
    }

    async fn disown(&mut self, client: usize, unknown: u16) -> Result<(), Stop> {
        let (Some(granted), Some(place)) =
            (self.clients[client].who, self.clients[client].place.clone())
        else {
            return Ok(());
        };
        let Asked { key, process, .. } = self.reference.asked[granted];
        let mut gone = Vec::new();
        for (number, other) in self.clients.iter_mut().enumerate() {
            let Some(who) = other.who else { continue };
            let asked = self.reference.asked[who];
            if asked.process == process
                && asked.key == key
                && (number == client || unknown & (1 << number) != 0)
            {
                gone.push(who);
                other.ended = true;
            }
        }
        let mut known: HashSet<Owner> = self.requests.iter().map(|request| request.owner).collect();
        for &who in &gone {
            known.remove(&self.requests[who].owner);
        }
        at(&mut self.processes, process)
            .disown(KEYS[key], &place, &known)
            .await?;
        self.reference.disown(granted, &gone);
        Ok(())
    }

    /// So much time, or a little more: nothing may be about to end.
    fn pass(&mut self, ms: u64) -> u64 {
        let ends = self.reference.ends();
        let is_near = |now: u64| ends.iter().any(|&end| end.abs_diff(now) <= NEAR);
        let mut then = self.reference.now + ms;
        while is_near(then) {
            then += 50;
        }
        let pass = then - self.reference.now;
        self.reference.now = then;
        pass
    }

    /// What the reference shows of a lock.
    fn shown(&mut self, key: usize) -> Option<Shown> {
        let (holders, waiters) = self.reference.look(key);
        if let Some((who, _)) = self.reference.done(key) {
            return Some(Shown {
                key: KEYS[key].to_owned(),
                mode: Mode::Write.to_string(),
                holders: BTreeSet::new(),
                waiters: Some(0),
                done: Some(who),
            });
        }
        let modes = holders
            .iter()
            .map(|holder| self.reference.asked[holder.who].mode);
        // The most permits that one of them allows for.
        let mode = modes.max_by_key(|mode| match mode {
            Mode::Permits(most) => *most,
            _ => 0,
        })?;
        Some(Shown {
            key: KEYS[key].to_owned(),
            mode: mode.to_string(),
            holders: holders.iter().map(|holder| holder.who).collect(),
            // All of them listen.
            waiters: Some(match self.reference.rules.votes {
                true => PROCESSES,
                false => waiters,
            }),
            done: None,
        })
    }

    fn read(&self, lock: &LockInfo) -> Shown {
        Shown {
            key: lock.key.clone(),
            mode: lock.mode.to_string(),
            holders: lock
                .holders
                .iter()
                .map(|holder| self.who(&holder.owner))
                .collect(),
            waiters: lock.waiters,
            done: lock.done.as_ref().map(|done| self.who(&done.owner)),
        }
    }

    /// Whose request this is; a number that nobody has if it is nobody's.
    fn who(&self, owner: &str) -> Who {
        let mut requests = self.requests.iter();
        requests
            .position(|request| Some(&*request.owner.to_string()) == owner.split('/').next())
            .unwrap_or(usize::MAX)
    }

    /// Whether all is as it has to be.
    async fn compare(&mut self, pass: u64) -> Result<(), Stop> {
        let kept = self.scene.look(pass).await;
        if kept.late > LATE {
            return Err(Stop::TooLate);
        }
        same("kept without an end", &Vec::new(), &kept.endless)?;
        let nothing = KeptLock::default();
        for (key, name) in KEYS.iter().enumerate() {
            self.compare_lock(key, name, kept.locks.get(*name).unwrap_or(&nothing))?;
        }
        // What is wrong shows in the store sooner than what is not said.
        let told = self.hear().await?;
        same("told", std::mem::take(&mut self.reference.told), told)
    }

    fn compare_lock(&mut self, key: usize, name: &str, kept: &KeptLock) -> Result<(), Stop> {
        let now = self.reference.now;
        if self.reference.rules.looks_let_in {
            self.reference.look(key);
        }
        let holders = self.reference.locks[key].holders.iter();
        let holders = holders.filter(|holder| holder.until > now);
        let holders: Vec<Holder> = holders.copied().collect();
        let expected = holders.iter().map(|held| (held.who, held.unclaimed));
        let found = kept.holders.iter();
        let found = found.map(|held| (self.who(&held.owner), held.unclaimed));
        same(
            &format!("holders of {name}"),
            expected.collect::<BTreeSet<_>>(),
            found.collect(),
        )?;
        let is_read = |held: &Holder| self.reference.asked[held.who].mode.is_shared();
        same(
            &format!("{name} is shared"),
            holders.iter().any(is_read),
            kept.read && !kept.holders.is_empty(),
        )?;
        for held in &holders {
            let mut kept = kept.holders.iter();
            let kept = kept.find(|kept| self.who(&kept.owner) == held.who);
            let left = kept.map_or(0, |kept| kept.left);
            self.ends(
                &format!("the lease of {} on {name}", held.who),
                held.until,
                left,
            )?;
        }
        if let Some(last) = holders.iter().map(|held| held.until).max() {
            for &left in &kept.ends {
                self.ends(name, last, left)?;
            }
        }
        let done = self.reference.done(key);
        same(
            &format!("who has done {name}"),
            done.map(|(who, _)| who),
            kept.done.as_ref().map(|done| self.who(&done.owner)),
        )?;
        if let (Some((_, until)), Some(done)) = (done, &kept.done) {
            self.ends(&format!("the mark of {name}"), until, done.left)?;
        }
        let queue: Vec<Who> = self.reference.queue(key).collect();
        let Some(found) = &kept.queue else {
            // Nothing is there, or it shows by who is let in.
            let is_hidden = queue.is_empty() || self.reference.rules.looks_let_in;
            return same(&format!("queue of {name}"), true, is_hidden);
        };
        let found = found.iter().map(|owner| self.who(owner)).collect();
        same(&format!("queue of {name}"), queue, found)?;
        match kept.queue_ends {
            Some(left) => {
                let until = self.reference.locks[key].queue_until;
                self.ends(&format!("the queue of {name}"), until, left)
            }
            None => Ok(()),
        }
    }

    /// Whether something ends when it should.
    fn ends(&self, what: &str, until: u64, left: i64) -> Result<(), Stop> {
        let late = left - (until - self.reference.now).cast_signed();
        // The clock is read at several moments of a step, and a server may be kept waiting.
        if late.unsigned_abs() <= NEAR {
            return Ok(());
        }
        Err(Stop::Differs(format!(
            "{what} ends {late} ms later than expected"
        )))
    }

    /// What the store has said: what was expected is waited for, in the order in which
    /// each process hears it.
    async fn hear(&mut self) -> Result<Vec<Told>, Stop> {
        let expected = self.reference.told.clone();
        let mut told = Vec::new();
        let mut waits_for = expected.clone();
        for process in 0..PROCESSES {
            while let Some(open) = &mut self.processes[process] {
                let mine = waits_for.iter().position(|told| match *told {
                    Told::Grant(who) => self.reference.asked[who].process == process,
                    Told::End { process: whose, .. } => whose == process,
                });
                let patience = match mine {
                    Some(_) => self.patience,
                    None => Duration::ZERO,
                };
                let said = match open.says(patience).await {
                    None => break,
                    Some(Said::Missed) => continue,
                    Some(Said::Granted { key, place }) => {
                        let owner = place.split(':').nth(1).unwrap_or_default();
                        let who = self.who(owner);
                        let client = self
                            .clients
                            .iter_mut()
                            .find(|client| client.who == Some(who));
                        if let Some(client) = client {
                            client.place = Some(place);
                        }
                        if self
                            .reference
                            .asked
                            .get(who)
                            .is_none_or(|asked| KEYS[asked.key] != key)
                        {
                            return Err(Stop::Differs(format!(
                                "a grant of {key} was told to {who}"
                            )));
                        }
                        Told::Grant(who)
                    }
                    Some(Said::Freed { key }) => Told::End {
                        process,
                        key: KEYS
                            .iter()
                            .position(|name| *name == key)
                            .unwrap_or(usize::MAX),
                    },
                };
                if let Some(mine) = mine.filter(|&mine| waits_for[mine] == said) {
                    waits_for.remove(mine);
                }
                told.push(said);
                if waits_for.is_empty() && told.len() > expected.len() {
                    break;
                }
            }
        }
        // Processes hear independently of each other: theirs is not the order of the store.
        let in_order = |told: &Told| match *told {
            Told::Grant(who) => self.reference.asked[who].process,
            Told::End { process, .. } => process,
        };
        self.reference.told.sort_by_key(in_order);
        Ok(told)
    }
}

/// What is seen of a lock.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    key: String,
    mode: String,
    holders: BTreeSet<Who>,
    waiters: Option<usize>,
    done: Option<Who>,
}
