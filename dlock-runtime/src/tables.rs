//! Hash maps and sets, with keys drawn for each process.
//!
//! In a simulation all maps are hashed alike: the order in which the engine goes
//! through one is a part of the run, which must be the same in every process.

#[cfg(not(feature = "simulation"))]
pub(crate) use std::collections::{HashMap, HashSet};

#[cfg(feature = "simulation")]
mod alike {
    use std::collections;
    use std::hash::{BuildHasherDefault, DefaultHasher};

    type Alike = BuildHasherDefault<DefaultHasher>;

    pub(crate) type HashMap<K, V> = collections::HashMap<K, V, Alike>;
    pub(crate) type HashSet<K> = collections::HashSet<K, Alike>;
}

#[cfg(feature = "simulation")]
pub(crate) use self::alike::{HashMap, HashSet};
