//! The shop over HTTP, on memory and on a real Redis: clients that hang up
//! while they wait and while they hold a lock, what they are answered when it
//! was not had, and a rush on copies of the service in processes of their own.

#[path = "../../../../tests/support/mod.rs"]
mod support;

mod answers;
mod client;
mod gate;
mod hang_ups;
mod processes;
mod prometheus;
mod rush;
mod scene;
mod service;

use std::time::Duration;

/// Whoever stands still for two seconds does not have a lock in time, and who does so for five
/// loses it.
const IN_TIME: Duration = Duration::from_millis(500);

/// Makes a test of each function for each store.
macro_rules! on_each_store {
    ($($test:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $test() {
                let test = async || super::$test($crate::scene::Scene::on_memory().await).await;
                $crate::support::calm::unless_it_stands_still($crate::IN_TIME, test).await;
            })+
        }

        mod redis {
            $(#[tokio::test]
            async fn $test() {
                let test = async || super::$test($crate::scene::Scene::on_redis().await).await;
                $crate::support::calm::unless_it_stands_still($crate::IN_TIME, test).await;
            })+
        }
    };
}
pub(crate) use on_each_store;
