//! Which node of a cluster has which slot ([`map`], [`refresh`]), the connections to the
//! nodes ([`nodes`]), and what is listened to there ([`subscriptions`], [`listen`]).

mod listen;
mod map;
mod nodes;
mod refresh;
mod subscriptions;

use std::sync::Arc;

pub(crate) use self::map::SlotMap;
pub(crate) use self::nodes::Topology;
pub(crate) use self::subscriptions::{Subscription, Subscriptions};
use crate::store::Context;

/// Starts what keeps the map and the subscriptions up to date.
pub(super) fn start(topology: &Arc<Topology>, context: &Context) {
    context.spawn(refresh::keep_up_to_date(Arc::clone(topology)));
    context.spawn(listen::listen(Arc::clone(topology)));
}
