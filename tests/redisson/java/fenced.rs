//! `recipe=fenced`, which is `RFencedLock`.

use crate::Scene;
use crate::support::locks::{held, is_busy};

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn tokens_rise_from_side_to_side() {
    Scene::of_each("fenced", async |mut scene| {
        let mut last = 0;
        let mut rises = |token: u64| {
            assert!(token > last, "{token} behind {last}");
            last = token;
        };
        for key in ["key", "{key}"] {
            for _ in 0..3 {
                let guard = held(scene.ours.lock(key)).await;
                rises(guard.token().into());
                scene.give_to_java(guard, "fenced", key).await;
                let token = scene.java.told("token").await;
                rises(token.parse().expect("a number"));
                is_busy(scene.ours.lock(key).try_acquire().await);
                let guard = scene.take_from_java(scene.ours.lock(key), key).await;
                rises(guard.token().into());
                guard.release().await.expect("the release");
            }
        }
    })
    .await;
}
