//! Names that a `NameMapper` makes in Java.

use crate::read_write::{OUR_READER, WRITERS};
use crate::service::{Service, VERSIONS};
use crate::support::locks;
use crate::support::redis::RedisServer;
use crate::{Pair, Scene, url};

/// What it puts in front of each is our namespace.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn what_is_mapped_in_java_has_a_namespace_here() {
    for version in VERSIONS {
        let of_both = [Pair::of("lock"), Pair::of("fenced"), WRITERS, OUR_READER];
        // The old version does not map the name of the queue.
        let is_new = version == VERSIONS[1];
        let fair = is_new.then_some(Pair::of("fair"));
        let server = RedisServer::start().await;
        let ports = [server.port()];
        let address = server.url();
        let namespaced = async |pair: Pair| {
            let config = locks::config(&url(&address, pair.recipe));
            locks::connect(config.namespace("shop")).await
        };
        let mut scene = Scene {
            pair: of_both[0],
            java: Service::start_with_names(version, "single", &ports, "shop:").await,
            ours: namespaced(of_both[0]).await,
            server,
        };
        for pair in of_both.into_iter().chain(fair) {
            scene.pair = pair;
            scene.ours = namespaced(pair).await;
            for key in ["key", "{stock}:42"] {
                let guard = locks::held(scene.wants(key)).await;
                let mapped = ["EXISTS", &format!("shop:{key}")];
                assert!(scene.server.command::<bool>(&mapped).await);
                guard.release().await.expect("the release");
                scene.takes_turns(key).await;
            }
        }
    }
}
