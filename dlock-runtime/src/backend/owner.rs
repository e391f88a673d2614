//! The identity of a request for a lock.
//!
//! A store tells requests apart by their owners alone, so no two requests may have the same
//! owner, whatever happens to a process. The memory of a process may be copied: a virtual machine
//! may be resumed twice from one snapshot, or a container from an image that CRIU has written.
//! Both copies then have every number that was drawn before, the state of each generator and
//! counter, the process id, and everything else that identifies the process. Only numbers drawn
//! after the copy differ, and only if they come from outside the memory of the process: from the
//! kernel, by a system call, and not from a buffer that was filled before.

use std::cmp;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::origin::Process;
use super::origin::{Origin, Signature};
use super::{BackendError, BackendErrorKind};

/// The identity of a request: unique for each request of each process, and of each clone of a
/// process or a machine. It is never used again.
///
/// It is displayed as it is written in a store: `<random>.<sequence>`, in hex. If a manager has
/// drawn it, an `@` and the origin of the request follow, for people: in
/// `0123456789abcdef.7@web-3,4711,orders,1767225600000` these are the host, the process, the
/// label and when it asked, in milliseconds since 1970 by the clock of that host. Owners with the
/// same two numbers are equal, whatever follows the `@`.
#[derive(Clone, Copy)]
pub struct Owner {
    /// Drawn for this owner. It distinguishes the owners of different processes.
    random: u64,
    /// Counts the owners of a process. It distinguishes them for certain.
    sequence: u64,
    signature: Option<Signature>,
}

/// The longest text of an owner.
pub(crate) const LONGEST_OWNER: usize = 16 + 1 + 16 + 1 + super::origin::LONGEST_SIGNATURE;

static OWNERS: Owners<fn() -> io::Result<u64>> = Owners::new(drawn);

impl Owner {
    /// Draws an owner that no other request has, in this process, in another one, or in a clone
    /// of this one.
    ///
    /// A manager fails if the kernel gives no random numbers. Code that uses a backend without a
    /// manager then gets an owner that a clone of the process may draw too.
    #[must_use]
    pub fn unique() -> Self {
        OWNERS.next().unwrap_or_else(|_| {
            let sequence = OWNERS.count();
            let random = fallback(sequence);
            Self::bare(random, sequence)
        })
    }

    /// A new owner for a manager, which asks now; fails if the kernel gives no random number.
    pub(crate) fn draw(origin: Origin) -> Result<Self, BackendError> {
        Self::draw_signed(|| Some(Signature::now(origin)))
    }

    /// A new owner for the same request of the same manager.
    pub(crate) fn draw_again(self) -> Result<Self, BackendError> {
        Self::draw_signed(|| self.signature)
    }

    fn draw_signed(signature: impl Fn() -> Option<Signature>) -> Result<Self, BackendError> {
        #[cfg(feature = "simulation")]
        if let Some(process) = crate::simulation::running() {
            return Ok(Self::of(&*process));
        }
        let owner = OWNERS.next().map_err(refused)?;
        Ok(owner.signed(signature()))
    }

    /// An owner without a signature.
    const fn bare(random: u64, sequence: u64) -> Self {
        Self {
            random,
            sequence,
            signature: None,
        }
    }

    fn signed(self, signature: Option<Signature>) -> Self {
        Self { signature, ..self }
    }

    /// An owner of this simulated process.
    #[cfg(feature = "simulation")]
    fn of(process: &dyn crate::simulated::Simulated) -> Self {
        const DRAWN: f64 = (1_u64 << 53) as f64;
        Self::bare((process.draw() * DRAWN) as u64, process.count())
    }

    /// The random number that the kernel gave for this owner.
    #[must_use]
    pub fn random(self) -> u64 {
        self.random
    }

    /// Whether a text may be that of an owner, and not of another program.
    pub(crate) fn is_one(text: &str) -> bool {
        Self::read(text).is_some()
    }

    /// Parses an owner from its displayed text; the signature is checked and dropped.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (numbers, signature) = match text.split_once('@') {
            Some((numbers, signature)) => (numbers, Some(signature)),
            None => (text, None),
        };
        let (random, sequence) = numbers.split_once('.')?;
        let is_one = |text| super::origin::is_signature(text);
        signature.is_none_or(is_one).then_some(())?;
        Some(Self::bare(
            u64::from_str_radix(random, 16).ok()?,
            u64::from_str_radix(sequence, 16).ok()?,
        ))
    }

    /// The process that has signed it.
    pub(crate) fn process(self) -> Option<Process> {
        self.signature.map(|signature| signature.origin.into())
    }

    pub(crate) fn signature(self) -> Option<Signature> {
        self.signature
    }

    /// The number of the request within its process.
    #[must_use]
    pub fn sequence(self) -> u64 {
        self.sequence
    }
}

/// The source of the owners of a process.
#[derive(Debug)]
struct Owners<K> {
    kernel: K,
    sequence: AtomicU64,
}

impl<K> Owners<K> {
    const fn new(kernel: K) -> Self {
        let sequence = AtomicU64::new(1);
        Self { kernel, sequence }
    }

    fn count(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }
}

impl<K: Fn() -> io::Result<u64>> Owners<K> {
    fn next(&self) -> io::Result<Owner> {
        Ok(Owner::bare((self.kernel)()?, self.count()))
    }
}

fn drawn() -> io::Result<u64> {
    #[cfg(test)]
    refusal::check()?;
    from_the_kernel()
}

/// Lets a test refuse random numbers to this thread.
#[cfg(test)]
pub(crate) mod refusal {
    use std::cell::Cell;
    use std::io;

    thread_local!(static REFUSES: Cell<bool> = const { Cell::new(false) });

    pub(crate) fn set(refuses: bool) {
        REFUSES.set(refuses);
    }

    pub(super) fn check() -> io::Result<()> {
        match REFUSES.get() {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => Ok(()),
        }
    }
}

/// Draws eight bytes by one system call. The C library's function, which the usual crates call,
/// may take them from a buffer in the memory of the process. <https://lwn.net/Articles/983186/>
#[cfg(target_os = "linux")]
fn from_the_kernel() -> io::Result<u64> {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0; 8];
    // A request for up to 256 bytes is answered in full, and no signal cuts it short.
    // <https://man7.org/linux/man-pages/man2/getrandom.2.html>
    match getrandom(&mut bytes[..], GetRandomFlags::empty())? {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn from_the_kernel() -> io::Result<u64> {
    Ok(getrandom::u64()?)
}

fn refused(error: io::Error) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        format!(
            "the kernel gives no random numbers ({error}), by which the requests of different \
             machines are told apart; allow the system call `getrandom`"
        ),
    )
}

/// A number for this process and owner: hashed with a seed drawn in the process, and with the
/// process id, which distinguishes forks.
fn fallback(sequence: u64) -> u64 {
    static SEED: OnceLock<RandomState> = OnceLock::new();
    SEED.get_or_init(RandomState::new)
        .hash_one((std::process::id(), sequence))
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{:x}", self.random, self.sequence)?;
        match &self.signature {
            Some(signature) => write!(f, "@{signature}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:016x}.{:x})", self.random, self.sequence)
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        (self.random, self.sequence) == (other.random, other.sequence)
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.random, self.sequence).hash(state);
    }
}

impl PartialOrd for Owner {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Owner {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        (self.random, self.sequence).cmp(&(other.random, other.sequence))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A clone is a copy of the memory of a process.
    impl<K: Clone> Clone for Owners<K> {
        fn clone(&self) -> Self {
            Self {
                kernel: self.kernel.clone(),
                sequence: AtomicU64::new(self.sequence.load(Ordering::Relaxed)),
            }
        }
    }

    #[test]
    fn clones_draw_different_owners() {
        const DRAWN: usize = 10_000;
        let machine = Owners::new(from_the_kernel);
        let mut drawn = HashSet::from([machine.next().expect("a random number")]);
        for _ in 0..3 {
            let clones = [machine.clone(), machine.clone()];
            for _ in 0..DRAWN {
                let [one, other] = clones
                    .each_ref()
                    .map(|clone| clone.next().expect("a random number"));
                assert_eq!(one.sequence, other.sequence, "all they know is the same");
                assert_ne!(one.random, other.random);
                assert!(drawn.insert(one) && drawn.insert(other));
            }
        }
    }

    /// A copy of the process also has its generators, in the same state.
    #[test]
    fn no_generator_of_the_process_makes_an_owner() {
        let draw = || {
            fastrand::seed(7);
            [
                Owner::draw(Origin::here("shop")).expect("a random number"),
                Owner::unique(),
            ]
        };
        let [one, other] = [draw(), draw()].map(|owners| owners.map(|owner| owner.random));
        assert!(one.iter().all(|random| !other.contains(random)));
    }

    #[test]
    fn an_owner_is_read_as_it_is_displayed() {
        let [small, large] = [1, u64::MAX].map(|number| Owner::bare(number, number));
        let signed = Owner::draw(Origin::here("shop")).expect("a random number");
        for owner in [small, large, Owner::unique(), signed] {
            assert_eq!(Owner::read(&owner.to_string()), Some(owner));
        }
        for text in [
            "",
            "nobody",
            "1.",
            ".1",
            "1.2.3",
            "1.2@",
            "1.2@somebody",
            "1.2@a,b,c,d e",
            "1.2@a,1,c,2.",
            "1.2@a,1,c,2.secret",
            "1.2@a,1,c,2.4111111111111111111111",
        ] {
            assert_eq!(Owner::read(text), None, "{text}");
        }
    }

    /// A number that was drawn in advance would be in the next clone too.
    #[test]
    fn the_kernel_is_asked_for_each_owner() {
        let asked = AtomicU64::new(0);
        let owners = Owners::new(|| Ok(asked.fetch_add(1, Ordering::Relaxed)));
        for before in 0..100 {
            assert_eq!(owners.next().expect("a number").random, before);
            assert_eq!(asked.load(Ordering::Relaxed), before + 1);
        }
    }

    #[test]
    fn a_kernel_that_gives_none_is_told() {
        let owners = Owners::new(|| Err(io::ErrorKind::PermissionDenied.into()));
        let error = refused(owners.next().expect_err("no random number"));
        assert_eq!(error.kind(), BackendErrorKind::Unsupported);
        for part in ["permission denied", "`getrandom`"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        let numbers: HashSet<_> = (0..1000).map(fallback).collect();
        assert_eq!(numbers.len(), 1000);
    }
}
