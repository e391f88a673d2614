//! `layout=redisson` in a cluster, where each lock has its slot, and channels have too: the
//! conformance suite on the keys of each of Redisson's classes. It is four times the suite,
//! each time on six servers, so `./tests/run.sh` leaves it to `--all`.

#[path = "../../support/mod.rs"]
mod support;

#[path = "../recipes.rs"]
mod recipes;

use std::marker::PhantomData;
use std::time::Duration;

use dlock_conformance::{Store, async_trait, conformance};

use recipes::Recipe;
use support::cluster::Cluster;
use support::lent::Lent;
use support::proxy::Proxy;

/// A cluster for one test, whose nodes say that they are where proxies are.
struct InCluster<R>(Lent<Cluster>, PhantomData<R>);

impl<R> InCluster<R> {
    fn cluster(&self) -> &Cluster {
        &self.0
    }
}

#[async_trait(?Send)]
impl<R: Recipe> Store for InCluster<R> {
    recipes::abilities!("cost" "restart");

    async fn start() -> Self {
        Self(Lent::empty().await, PhantomData)
    }

    fn url(&self) -> String {
        recipes::url(&self.cluster().url(""), R::NAME)
    }

    fn proxies(&self) -> &[Proxy] {
        &self.cluster().proxies
    }

    /// It is six servers.
    fn request_timeout(&self) -> Duration {
        Duration::from_millis(1_000)
    }

    async fn take_away(&self, key: &str) {
        let owner = self.cluster().owner(key).await;
        let deleted: u32 = owner.command(&["DEL", key]).await;
        assert_eq!(deleted, 1, "nobody held `{key}`");
    }

    async fn records(&self) -> Option<usize> {
        Some(recipes::records(&self.cluster().keys().await))
    }
}

mod lock {
    super::conformance!(crate::InCluster<crate::recipes::Lock>);
}

mod fenced {
    super::conformance!(crate::InCluster<crate::recipes::Fenced>);
}

mod in_order {
    super::conformance!(crate::InCluster<crate::recipes::Fair>);
}

mod read_write {
    super::conformance!(crate::InCluster<crate::recipes::ReadWrite>);
}
