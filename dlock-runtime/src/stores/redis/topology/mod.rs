//! Which node of a cluster has which slot ([`map`], [`refresh`]), the connections to the
//! nodes ([`nodes`]), and what is listened to there ([`subscriptions`]).

mod map;
mod nodes;
mod refresh;
mod subscriptions;

pub(crate) use self::map::SlotMap;
pub(crate) use self::nodes::Topology;
pub(super) use self::refresh::keep_up_to_date;
pub(crate) use self::subscriptions::Subscriptions;
