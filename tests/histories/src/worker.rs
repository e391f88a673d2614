//! A process of a history. Its tasks take the locks again and again, and it prints
//! how each call ended.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock::{Config, FencingToken, LockError, current, distributed_lock};
use dlock_conformance::support::process::command;
use dlock_conformance::support::program::Program;
use dlock_conformance::support::resource::{Section, Visit};
use fastrand::Rng;

use crate::call::{Call, Outcome, Policy};
use crate::history::LOCKS;
use crate::moment::Moment;
use crate::still::Still;
use crate::support::machine::Machine;

/// As which the program plays a worker.
pub(crate) const ROLE: &str = "worker";

/// What no call waits for longer when the store says nothing.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

const TASKS: u64 = 3;

/// The longest body takes longer than a short lease.
pub(crate) const LONGEST: Duration = Duration::from_secs(4);

/// For how long a call waits.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(600);
pub(crate) const PATIENTLY: Duration = Duration::from_secs(5);

/// After so long at most, a call of the policy [`Policy::Dropped`] is dropped.
pub(crate) const DROPPED_AFTER: Duration = Duration::from_secs(1);

/// The last lock may be had by so many at once.
const PERMITS: u32 = 2;

/// How often a body that goes on after a loss says that it holds its lock.
const SAYS: Duration = Duration::from_millis(50);

/// What a worker is told when it starts, in the order of its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) ttl: Duration,
    /// For each lock what it protects.
    pub(crate) resources: Vec<SocketAddr>,
    /// Whether grants have tokens: without, nothing holds up a body that goes on.
    pub(crate) tokens: bool,
    /// Whether there are locks that only read.
    pub(crate) reads: bool,
    /// Whether there are permits: those of the last resource.
    pub(crate) permits: bool,
    /// The worker ends when this file is there.
    pub(crate) stop: PathBuf,
    pub(crate) seed: u64,
}

impl Orders {
    /// Starts a worker, on a machine that can be spoiled if there is one.
    pub(crate) fn start(&self, machine: Option<&Machine>) -> Program {
        let mut worker = command(std::env::current_exe().expect("this program's path"));
        let resources: Vec<_> = self.resources.iter().map(SocketAddr::to_string).collect();
        worker
            .args([ROLE, &self.name, &self.url])
            .arg(self.ttl.as_millis().to_string())
            .arg(resources.join(","))
            .arg(self.tokens.to_string())
            .arg(self.reads.to_string())
            .arg(self.permits.to_string())
            .arg(&self.stop)
            .arg(self.seed.to_string());
        if let Some(machine) = machine {
            worker = machine.runs(&worker);
        }
        Program::start_with(worker, Stdio::null())
    }

    /// What stands behind [`ROLE`].
    fn read(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let mut next = || arguments.next();
        Some(Self {
            name: next()?,
            url: next()?,
            ttl: Duration::from_millis(next()?.parse().ok()?),
            resources: next()?
                .split(',')
                .map(|address| address.parse().ok())
                .collect::<Option<_>>()?,
            tokens: next()?.parse().ok()?,
            reads: next()?.parse().ok()?,
            permits: next()?.parse().ok()?,
            stop: PathBuf::from(next()?),
            seed: next()?.parse().ok()?,
        })
    }
}

/// Why a body has not counted.
#[derive(Debug)]
enum Failure {
    Lock(LockError),
    Outdated,
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl Failure {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Outdated => Outcome::Outdated,
            Self::Lock(LockError::Busy { .. }) => Outcome::Busy,
            Self::Lock(LockError::Timeout { .. }) => Outcome::Timeout,
            Self::Lock(LockError::Unavailable { .. }) => Outcome::Unavailable,
            Self::Lock(LockError::Lost { .. }) => Outcome::Lost,
            Self::Lock(error) => Outcome::Other(error.to_string().replace('\n', " ")),
        }
    }
}

/// What a body knows.
struct Body<'a> {
    orders: &'a Orders,
    number: usize,
    lasts: Duration,
    /// When its lock was asked for.
    asked: Moment,
    /// Whether it goes on after a loss, or only reads.
    goes_on: bool,
    reads: bool,
    permits: Option<usize>,
    /// What it was granted with, and when it began and came to its end.
    token: AtomicU64,
    entered: AtomicU64,
    left: AtomicU64,
}

impl Body<'_> {
    /// Says that its lock is held, if it is.
    async fn is_held(&self, section: &mut Section) {
        let asked = Moment::now();
        if self.goes_on && current().is_some_and(|held| held.is_held()) {
            let said = section.held(asked.micros().into()).await;
            said.expect("the resource");
        }
    }

    async fn lasts(&self, section: &mut Section) {
        let mut left = self.lasts;
        while !left.is_zero() {
            let step = if self.goes_on { left.min(SAYS) } else { left };
            tokio::time::sleep(step).await;
            left -= step;
            self.is_held(section).await;
        }
    }
}

fn mark(moment: &AtomicU64) {
    moment.store(Moment::now().micros(), Ordering::Relaxed);
}

/// Adds one to a counter that offers only read and write. Or it does not add anything.
async fn work(body: &Body<'_>) -> Result<(), Failure> {
    mark(&body.entered);
    let token = current().map_or(FencingToken::NONE, |held| held.token());
    body.token.store(token.into(), Ordering::Relaxed);
    let resource = body.orders.resources[body.number];
    let outdated = |_| Failure::Outdated;
    let asked = body.asked.micros().into();
    let visit = Visit::new(&body.orders.name, token.into(), asked)
        .reads(body.reads)
        .permits(body.permits)
        .goes_on(body.goes_on);
    let section = Section::visit(resource, visit).await;
    let mut section = section.expect("the resource").map_err(outdated)?;
    let value = section.read().await.expect("the resource");
    body.is_held(&mut section).await;
    let value = value.map_err(outdated)?;
    body.lasts(&mut section).await;
    let done = match body.reads || body.permits.is_some() {
        true => section.read().await,
        false => section.write(value + 1).await,
    };
    body.is_held(&mut section).await;
    done.expect("the resource").map_err(outdated)?;
    let left = section.leave().await.expect("the resource");
    mark(&body.left);
    left.map(drop).map_err(outdated)
}

#[distributed_lock(key = "counter:<body.number>", try)]
async fn tries(body: &Body<'_>) -> Result<(), Failure> {
    work(body).await
}

#[distributed_lock(key = "counter:<body.number>", timeout = "600ms")]
async fn waits_briefly(body: &Body<'_>) -> Result<(), Failure> {
    work(body).await
}

#[distributed_lock(key = "counter:<body.number>", timeout = "5s")]
async fn waits_patiently(body: &Body<'_>) -> Result<(), Failure> {
    work(body).await
}

#[distributed_lock(key = "counter:<body.number>", timeout = "5s", on_lost = "continue")]
async fn goes_on_after_a_loss(body: &Body<'_>) -> Result<(), Failure> {
    work(body).await
}

#[distributed_lock(key = "counter:<body.number>", mode = "read", timeout = "5s")]
async fn reads(body: &Body<'_>) -> Result<(), Failure> {
    work(body).await
}

#[distributed_lock(key = "counter:<body.number>", permits = PERMITS, timeout = "5s")]
async fn shares_with_others(body: &Body<'_>) -> Result<(), Failure> {
    work(body).await
}

/// Plays one, until it is told to stop.
pub(crate) fn play(arguments: impl Iterator<Item = String>) {
    let orders = Orders::read(arguments).expect("what a worker is told");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let config = Config::from_url(&orders.url).expect("a valid URL");
        let config = config.ttl(orders.ttl).request_timeout(REQUEST_TIMEOUT);
        // It may begin in the middle of an outage.
        while let Err(error) = dlock::init(config.clone()).await {
            assert!(matches!(error, LockError::Unavailable { .. }), "{error}");
            if orders.stop.exists() {
                return;
            }
        }
        println!("ready");
        let orders = Arc::new(orders);
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let orders = Arc::clone(&orders);
            let draws = Rng::with_seed(orders.seed ^ task);
            tasks.spawn(async move { calls(&orders, draws).await });
        }
        tasks.join_all().await;
        dlock::shutdown().await;
    });
}

/// One call after the other.
async fn calls(orders: &Orders, mut draws: Rng) {
    while !Path::exists(&orders.stop) {
        let policy = match draws.u8(..14) {
            0..2 => Policy::Try,
            2..4 => Policy::Briefly,
            4 => Policy::Dropped,
            8..10 if orders.tokens => Policy::Stubbornly,
            10..12 if orders.reads => Policy::Reads,
            12.. if orders.permits => Policy::Shares,
            _ => Policy::Patiently,
        };
        let shares = policy == Policy::Shares;
        let number = match shares {
            true => LOCKS,
            false => draws.usize(..LOCKS),
        };
        let (from, still) = (Moment::now(), Still::here().so_far());
        let body = Body {
            orders,
            number,
            lasts: match draws.u8(..60) {
                0 => LONGEST.mul_f64(draws.f64()),
                // Long enough that several are inside.
                _ if shares => Duration::from_micros(draws.u64(..30_000)),
                _ => Duration::from_micros(draws.u64(..3_000)),
            },
            asked: from,
            goes_on: policy == Policy::Stubbornly,
            reads: policy == Policy::Reads,
            permits: shares.then_some(PERMITS as usize),
            token: AtomicU64::new(0),
            entered: AtomicU64::new(0),
            left: AtomicU64::new(0),
        };
        let answer = match policy {
            Policy::Try => Some(tries(&body).await),
            Policy::Briefly => Some(waits_briefly(&body).await),
            Policy::Patiently => Some(waits_patiently(&body).await),
            Policy::Stubbornly => Some(goes_on_after_a_loss(&body).await),
            Policy::Reads => Some(reads(&body).await),
            Policy::Shares => Some(shares_with_others(&body).await),
            Policy::Dropped => {
                // From a microsecond to a second, each as likely.
                let until = DROPPED_AFTER.mul_f64(0.1_f64.powf(6.0 * draws.f64()));
                let answer = tokio::time::timeout(until, waits_patiently(&body)).await;
                answer.ok()
            }
        };
        let outcome = match answer {
            Some(Ok(())) => Outcome::Done,
            Some(Err(failure)) => failure.outcome(),
            None => Outcome::Dropped,
        };
        let marked = |at: AtomicU64| Some(at.into_inner()).filter(|at| *at > 0);
        let call = Call {
            key: number,
            policy,
            from,
            entered: marked(body.entered).map(Moment::from_micros),
            left: marked(body.left).map(Moment::from_micros),
            to: Moment::now(),
            still: Still::here().so_far().saturating_sub(still),
            token: body.token.into_inner(),
            outcome,
        };
        println!("{call}");
        // An error that comes at once does not make a busy loop.
        let pause = if call.entered.is_some() {
            2_000
        } else {
            20_000
        };
        tokio::time::sleep(Duration::from_micros(draws.u64(..pause))).await;
    }
}
