//! What a store does not have, it does not claim, and refuses. Each store runs these cases, whatever
//! it [leaves out](crate::Store::leaves_out).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::once::{REMEMBERED, once};
use super::permits::permits;
use super::{Store, nothing_left, process};
use crate::support::locks::{is_misconfigured, is_unsupported, says};
use crate::support::runtimes::current_thread;
use crate::support::wait::{HANG, within};

/// Otherwise a theme that is left out would hide that a store is not tested for what it has.
/// Permits and `once` that are not left out must be claimed: what is not claimed is not tested.
pub fn what_is_left_out_is_not_had<S: Store>() {
    current_thread().block_on(async {
        let mut store = S::start().await;
        within(2 * HANG, compare(&mut store)).await;
    });
}

async fn compare<S: Store>(store: &mut S) {
    let claimed = process(store).await.capabilities();
    let left_out = S::leaves_out();
    for (theme, has) in [("permits", claimed.permits), ("once", claimed.once)] {
        assert_eq!(has, !left_out.contains(&theme), "`{theme}` is claimed");
    }
    for theme in left_out {
        match *theme {
            "permits" | "once" => {}
            "late_commands" => assert!(store.proxies().is_empty(), "its network can fail"),
            "cost" => assert!(store.costs().is_none(), "it counts what it is asked"),
            "restart" => assert!(!store.restart().await, "it can be restarted"),
            _ => panic!("every store runs `{theme}`"),
        }
    }
}

pub(crate) async fn permits_are_refused_where_they_cannot_be_kept(store: &mut dyn Store) {
    let manager = process(store).await;
    let capabilities = manager.capabilities();
    if !capabilities.permits {
        let asked = || within(HANG, permits(&manager, 2).acquire());
        let inside = manager.lock("key").run(async { asked().await.map(drop) });
        let inside = within(HANG, inside).await.expect("the lock");
        for refused in [asked().await.map(drop), inside] {
            let words = [
                "`key`",
                capabilities.name,
                "permits",
                capabilities.permits_with,
            ];
            says(&is_unsupported(refused), &words);
        }
    }
}

pub(crate) async fn once_is_refused_where_it_cannot_be_kept(store: &mut dyn Store) {
    let manager = process(store).await;
    let capabilities = manager.capabilities();
    let refused = [
        manager.lock("key").once(Duration::ZERO),
        manager.lock("key").read().once(REMEMBERED),
        manager.lock("key").permits(2).once(REMEMBERED),
        manager.lock(["key", "other"]).once(REMEMBERED),
    ];
    for request in refused {
        says(
            &is_misconfigured(within(HANG, request.acquire()).await),
            &["once"],
        );
    }
    if capabilities.once {
        let longer = capabilities.max_ttl + Duration::from_secs(1);
        let refused = || manager.lock("key").once(longer).acquire();
        says(&is_misconfigured(within(HANG, refused()).await), &["once"]);
        let inside = manager.lock("key").run(async { refused().await });
        let inside = within(HANG, inside).await.expect("the lock");
        says(&is_misconfigured(inside), &["once"]);
    } else {
        let inside = manager.lock("key").run(async {
            let ran = AtomicUsize::new(0);
            let body = async { Ok::<_, ()>(ran.fetch_add(1, Relaxed)) };
            let refused = once(&manager).run(body).await.map(drop);
            assert_eq!(ran.into_inner(), 0, "the body ran");
            refused
        });
        for refused in [
            within(HANG, once(&manager).acquire()).await.map(drop),
            within(HANG, inside).await.expect("the lock"),
            within(HANG, manager.forget("key")).await.map(drop),
        ] {
            says(
                &is_unsupported(refused),
                &["`key`", capabilities.name, "once", capabilities.once_with],
            );
        }
    }
    nothing_left(&manager).await;
}
