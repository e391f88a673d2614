//! The parts of a manager, and what is held through it. The public types for both are in `api`, a
//! higher layer that this module does not use.

pub(crate) mod acquire;
pub(crate) mod inner;
pub(crate) mod once;
pub(crate) mod requirements;
pub(crate) mod scope;
pub(crate) mod section;
