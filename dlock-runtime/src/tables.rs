//! Hash maps and sets, with a random seed for each process.
//!
//! Names of locks may come from a request, so a client must not be able to fill a map with
//! collisions: the hash has a random seed. It is not SipHash, on which a section spent a twelfth of
//! its instructions.
//!
//! In a simulation all maps use the same hash: the order in which the engine goes through a map is
//! a part of the run, which must be the same in every process.

use std::collections;

#[cfg(not(feature = "simulation"))]
type Hashed = foldhash::quality::RandomState;

#[cfg(feature = "simulation")]
type Hashed = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

pub(crate) type HashMap<K, V> = collections::HashMap<K, V, Hashed>;
pub(crate) type HashSet<K> = collections::HashSet<K, Hashed>;
