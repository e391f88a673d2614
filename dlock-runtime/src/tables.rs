//! Hash maps and sets, with keys drawn for each process.
//!
//! Names of locks may come from a request, so that a map must not be one that whoever sends
//! requests can fill with collisions: the hash is seeded by chance. It is not SipHash, which
//! a section spent a twelfth of its instructions on.
//!
//! In a simulation all maps are hashed alike: the order in which the engine goes
//! through one is a part of the run, which must be the same in every process.

use std::collections;

#[cfg(not(feature = "simulation"))]
type Hashed = foldhash::quality::RandomState;

#[cfg(feature = "simulation")]
type Hashed = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

pub(crate) type HashMap<K, V> = collections::HashMap<K, V, Hashed>;
pub(crate) type HashSet<K> = collections::HashSet<K, Hashed>;
