//! `recipe=fenced`, which is `RFencedLock`.

use crate::Scene;
use crate::support::locks::{held, is_busy, queued, served};

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn tokens_rise_from_side_to_side() {
    Scene::of_each("fenced", async |scene| {
        let Scene { mut java, ours, .. } = scene;
        let mut last = 0;
        let mut rises = |token: u64| {
            assert!(token > last, "{token} behind {last}");
            last = token;
        };
        for key in ["key", "{key}"] {
            for _ in 0..3 {
                let guard = held(ours.lock(key)).await;
                rises(guard.token().into());
                assert_eq!(java.told(&format!("lock fenced {key}")).await, "waits");
                queued(&ours, key, 1).await;
                guard.release().await.expect("the release");
                assert_eq!(java.answer().await, "held");
                rises(java.told("token").await.parse().expect("a number"));
                is_busy(ours.lock(key).try_acquire().await);
                let waiting = tokio::spawn(ours.lock(key).acquire());
                queued(&ours, key, 1).await;
                assert_eq!(java.told("release").await, "released");
                let guard = served(waiting).await;
                rises(guard.token().into());
                guard.release().await.expect("the release");
            }
        }
    })
    .await;
}
