//! Which node of a cluster has which slot ([`map`], [`refresh`]), the connection to it
//! ([`link`]), and what is listened to there ([`subscriptions`]).

mod link;
mod map;
mod refresh;
mod subscriptions;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub(crate) use self::map::Topology;
pub(crate) use self::subscriptions::{Subscription, Subscriptions};
use crate::engine::time::Time;

/// Starts what keeps the map and the subscriptions up to date, until `stopping`.
pub(super) fn start(
    topology: &Arc<Topology>,
    subscriptions: &Arc<Subscriptions>,
    time: &Time,
    stopping: &CancellationToken,
) {
    time.spawn(refresh::keep_up_to_date(
        Arc::clone(topology),
        stopping.clone(),
    ));
    time.spawn(subscriptions::listen(
        Arc::clone(topology),
        Arc::clone(subscriptions),
        stopping.clone(),
    ));
}
