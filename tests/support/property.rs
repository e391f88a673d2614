//! Properties: what holds for any input of a kind.
//!
//! - `PROPTEST_CASES`: how many inputs, for each property
//! - `PROPTEST_RNG_SEED`: the inputs of one run again
//!
//! One that fails is made smaller for as long as it still does, and printed. It becomes
//! a plain test then, so that no file of seeds is kept.

use std::cell::Cell;
use std::fmt::Debug;
use std::panic;
use std::sync::{Mutex, Once};
use std::time::Duration;

use dlock::{LockError, LockManager};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestCaseResult, TestRunner};
use tokio::runtime::Runtime;

use crate::support::secure::shown;
use crate::support::wait::{HANG, within};

/// A password that is shown nowhere.
pub(crate) const SECRET: &str = "hunter2";

/// Tries so many inputs, if nothing else is said.
#[track_caller]
pub(crate) fn holds<S: Strategy>(cases: u32, inputs: S, test: impl Fn(S::Value) -> TestCaseResult)
where
    S::Value: Debug,
{
    let said = std::env::var_os("PROPTEST_CASES").is_some();
    let config = Config {
        failure_persistence: None,
        // A case may take a while.
        max_shrink_iters: 256,
        max_shrink_time: 20_000,
        ..Config::default()
    };
    let config = Config {
        cases: if said { config.cases } else { cases },
        ..config
    };
    hear_panics();
    // Panics of other threads, those of a manager, are told once: one that an input has caused is
    // not taken for that of its smaller ones.
    let heard = Cell::new(panics().len());
    let new_panic = || {
        let all = panics();
        let first = all.get(heard.replace(all.len())).cloned();
        first.map(|first| TestCaseError::fail(format!("a panic: {first}")))
    };
    let result = TestRunner::new(config).run(&inputs, |input| {
        let tested = test(input);
        let new_panic = new_panic();
        tested.and(new_panic.map_or(Ok(()), Err))
    });
    if let (Ok(()), Some(failure)) = (&result, new_panic()) {
        panic!("{failure}");
    }
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

/// The same where a case awaits, for at most so long.
#[allow(dead_code, reason = "not each test binary awaits in this way")]
#[track_caller]
pub(crate) fn holds_within<S: Strategy>(
    limit: Duration,
    cases: u32,
    inputs: S,
    test: impl AsyncFn(S::Value) -> TestCaseResult,
) where
    S::Value: Debug,
{
    let runtime = Runtime::new().expect("a runtime");
    holds(cases, inputs, |input| {
        runtime.block_on(within(limit, test(input)))
    });
}

/// What every error is like: a line that says something, of a length that can be read,
/// in which nothing does anything to a terminal or a log.
pub(crate) fn is_plain(error: &LockError) -> TestCaseResult {
    is_plain_text(&error.to_string())?;
    let shown = shown(error);
    match shown.contains(SECRET) {
        true => Err(TestCaseError::fail(format!("the password: {shown}"))),
        false => Ok(()),
    }
}

/// Whether somebody else has the lock, or a busy machine took longer for an answer than a
/// call waits that waits for a moment only.
#[allow(dead_code, reason = "not each test binary asks for what others have")]
pub(crate) fn is_of_others(error: &LockError) -> bool {
    let is_late = error.to_string().contains("has not answered within");
    is_late || matches!(error, LockError::Busy { .. } | LockError::Timeout { .. })
}

/// What is told of the lock `key`, however it is asked for, and of who holds any: each in
/// plain words.
#[allow(dead_code, reason = "not each test binary asks for what others have")]
pub(crate) async fn told_of(
    manager: &LockManager,
    key: &str,
) -> Result<Vec<LockError>, TestCaseError> {
    const SHORT: Duration = Duration::from_millis(100);
    let lock = || manager.lock(key);
    let inspected = within(HANG, manager.inspect(key)).await;
    let listed = within(HANG, manager.list("")).await;
    let shown = inspected.iter().flatten().chain(listed.iter().flatten());
    for holder in shown.flat_map(|lock| &lock.holders) {
        is_plain_text(&holder.owner)?;
    }
    let mut answers = vec![
        within(HANG, lock().try_acquire()).await.map(drop),
        within(HANG, lock().acquire_within(SHORT)).await.map(drop),
        inspected.map(drop),
        listed.map(drop),
    ];
    if manager.capabilities().read_write {
        let reading = lock().read().acquire_within(SHORT);
        answers.push(within(HANG, reading).await.map(drop));
    }
    let told: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    told.iter().try_for_each(is_plain)?;
    Ok(told)
}

/// Without a secret: what somebody else has written may be one.
pub(crate) fn is_plain_text(text: &str) -> TestCaseResult {
    if text.contains(SECRET) {
        return Err(TestCaseError::fail(format!("a secret: {text}")));
    }
    let unprintable = |character: char| {
        character.is_control()
            || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    // The SQL that makes missing tables is ours, and is told whole.
    let told = text.split(": CREATE TABLE").next();
    if text.contains(unprintable) || told.is_some_and(|told| told.len() > 1_500) {
        let start: String = text.chars().take(600).collect();
        return Err(TestCaseError::fail(format!(
            "not plain, {} bytes: {start:?}",
            text.len()
        )));
    }
    Ok(())
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn panics() -> Vec<String> {
    let panics = PANICS.lock();
    panics.map_or_else(|poisoned| poisoned.into_inner().clone(), |all| all.clone())
}

/// Not those of a test, which has failed then.
fn hear_panics() {
    static HEARD: Once = Once::new();
    HEARD.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let current = std::thread::current();
            let is_test = current
                .name()
                .is_some_and(|name| name == "main" || name.contains("::"));
            // A library that panics at an answer cannot be mended here: it must do no harm.
            let place = panic.location().map(|place| place.file());
            let is_other = place.is_some_and(|file| file.contains("/registry/"));
            // A body that panics as its test has it do, on a thread of its runtime.
            let is_body = place.is_some_and(|file| file.starts_with("tests/"));
            if let Ok(mut panics) = PANICS.lock()
                && !is_test
                && !is_other
                && !is_body
            {
                panics.push(panic.to_string());
            }
            before(panic);
        }));
    });
}
