//! Go's `concurrency.Mutex`, request by request, through the same client.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, PutOptions, SortOrder, SortTarget, Txn,
    TxnOp, TxnOpResponse, WatchOptions,
};

use crate::{Locker, TTL};

/// Sessions last as long as this does. Each task that is inside a section, or
/// waits for one, has one of its own, as two that share one both win. Nothing
/// keeps their leases alive here.
#[derive(Clone)]
pub struct EtcdMutex {
    client: Client,
    /// Leases that nobody uses at the moment.
    sessions: Arc<Mutex<Vec<i64>>>,
}

impl fmt::Debug for EtcdMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdMutex").finish_non_exhaustive()
    }
}

impl EtcdMutex {
    fn sessions(&self) -> std::sync::MutexGuard<'_, Vec<i64>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn session(&self) -> i64 {
        let idle = self.sessions().pop();
        match idle {
            Some(session) => session,
            None => {
                let seconds = TTL.as_secs() as i64;
                let granted = self.client.clone().lease_grant(seconds, None).await;
                granted.expect("a lease").id()
            }
        }
    }

    /// `Lock`: the key is named after the session; the lowest create-revision
    /// holds.
    async fn lock(&self, queue: &str, key: &str, session: i64) {
        let mut client = self.client.clone();
        let put = PutOptions::new().with_lease(session);
        let first = GetOptions::new()
            .with_prefix()
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(1);
        let txn = Txn::new()
            .when([Compare::create_revision(key, CompareOp::Equal, 0)])
            .and_then([
                TxnOp::put(key, "", Some(put)),
                TxnOp::get(queue, Some(first)),
            ]);
        let answer = client.txn(txn).await.expect("an answer");
        assert!(answer.succeeded(), "a session has one lock at a time");
        let own = answer.header().expect("a header").revision();
        let first = match answer.op_responses().pop() {
            Some(TxnOpResponse::Get(found)) => found.kvs()[0].create_revision(),
            other => panic!("not what was asked for: {other:?}"),
        };
        if first < own {
            self.wait(queue, own - 1).await;
            let found = client.get(key, None).await.expect("an answer");
            assert_eq!(found.kvs().len(), 1, "the session lives");
        }
    }

    /// `waitDeletes`.
    async fn wait(&self, queue: &str, up_to: i64) {
        let mut client = self.client.clone();
        loop {
            let last = GetOptions::new()
                .with_prefix()
                .with_sort(SortTarget::Create, SortOrder::Descend)
                .with_limit(1)
                .with_max_create_revision(up_to);
            let found = client.get(queue, Some(last)).await.expect("an answer");
            let Some(ahead) = found.kvs().first() else {
                return;
            };
            let revision = found.header().expect("a header").revision();
            let from = WatchOptions::new().with_start_revision(revision);
            let mut watch = client
                .watch(ahead.key(), Some(from))
                .await
                .expect("a watch");
            loop {
                let message = watch.message().await.expect("a stream");
                let message = message.expect("a stream that goes on");
                let mut events = message.events().iter();
                if events.any(|event| event.event_type() == EventType::Delete) {
                    break;
                }
            }
        }
    }
}

impl Locker for EtcdMutex {
    const NAME: &'static str = "Go's recipe";

    async fn connect(url: &str) -> Self {
        let host = url.trim_start_matches("etcd://");
        Self {
            client: Client::connect([host], None).await.expect("a connection"),
            sessions: Arc::default(),
        }
    }

    async fn section<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> T {
        let session = self.session().await;
        let queue = format!("{key}/");
        let own = format!("{queue}{session:x}");
        self.lock(&queue, &own, session).await;
        let value = body.await;
        let deleted = self.client.clone().delete(own, None).await;
        deleted.expect("an answer");
        self.sessions().push(session);
        value
    }
}
