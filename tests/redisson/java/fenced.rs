//! `recipe=fenced`, which is `RFencedLock`.

use crate::scenes::play;
use crate::support::calm::always;
use crate::support::locks::{held, is_busy};
use crate::{Pair, Scene};

const FENCED: Pair = Pair::of("fenced");

play! {
    FENCED;
    both_exclude_each_other
    who_waits_hears_of_the_others_release
    each_sees_who_holds_the_lock
    what_was_taken_away_is_lost_on_either_side
    a_killed_service_frees_its_lock
    a_dead_process_of_ours_frees_its_lock
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn tokens_rise_from_side_to_side() {
    Scene::of_each(FENCED, async |mut scene| {
        let mut last = 0;
        let mut rises = |token: u64| {
            always(token > last, format_args!("{token} behind {last}"));
            last = token;
        };
        for key in ["key", "{key}"] {
            for _ in 0..3 {
                let guard = held(scene.ours.lock(key)).await;
                rises(guard.token().into());
                scene.give_to_java(guard, key).await;
                let token = scene.java.told("token").await;
                rises(token.parse().expect("a number"));
                is_busy(scene.ours.lock(key).try_acquire().await);
                let guard = scene.take_from_java(key).await;
                rises(guard.token().into());
                guard.release().await.expect("the release");
            }
        }
    })
    .await;
}
