//! The nodes of a cluster: which node has which slot ([`map`], [`refresh`]), the connections to
//! them ([`nodes`]), and the subscriptions there ([`subscriptions`]).

mod map;
mod nodes;
mod refresh;
mod subscriptions;

pub(crate) use self::map::SlotMap;
pub(crate) use self::nodes::Topology;
pub(super) use self::refresh::keep_up_to_date;
pub(crate) use self::subscriptions::Subscriptions;
