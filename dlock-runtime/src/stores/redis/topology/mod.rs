//! The nodes of a cluster: which node has which slot ([`map`], [`refresh`]), and the
//! connections to them ([`nodes`]).

mod map;
mod nodes;
mod refresh;

pub(crate) use self::map::SlotMap;
#[cfg(test)]
pub(super) use self::map::View;
pub(crate) use self::nodes::Topology;
pub(super) use self::refresh::keep_up_to_date;
use crate::stores::address::Address;

/// The nodes that a URL names.
pub(super) type Seeds = Vec<Address>;
