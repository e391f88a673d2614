//! What a manager is made of, and what is held through it. The faces that a
//! user sees of both are in `api`, which is above and not known here.

pub(crate) mod acquire;
pub(crate) mod inner;
pub(crate) mod once;
pub(crate) mod requirements;
pub(crate) mod scope;
pub(crate) mod section;
mod short_ttl;
