//! What a manager is made of, and what is held through it. The faces that a
//! user sees of both are in [`api`](crate::api).

pub(crate) mod acquire;
pub(crate) mod section;
