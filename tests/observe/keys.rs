//! What a log of lines makes of keys that come from outside.

use dlock::backend::memory::Memory;
use dlock::{Config, LockError, LockManager, Patience, distributed_lock};
use tracing_subscriber::fmt::format::FmtSpan;

use crate::collector::Lines;
use crate::{ms, settle};

/// As a subscriber of `tracing` prints them, to be read by line.
fn subscriber(lines: &Lines) -> impl tracing::Subscriber + Send + Sync + use<> {
    let lines = lines.clone();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(FmtSpan::FULL)
        .with_writer(move || lines.clone())
        .finish()
}

async fn manager(memory: &Memory) -> LockManager {
    let config = Config::with_backend(memory.clone()).detect_lock_order(true);
    LockManager::connect(config).await.expect("memory connects")
}

#[distributed_lock(key = "<name>", try)]
async fn attribute(name: &str) -> Result<(), LockError> {
    Ok(())
}

/// Every way to a lock, and every end of it.
async fn use_as_a_key(name: &str) {
    let memory = Memory::new();
    let (here, there) = (manager(&memory).await, manager(&memory).await);
    // Whatever becomes of them is in the log.
    drop(here.scope(attribute(name)).await);
    drop(here.lock(name).try_acquire().await);
    drop(here.lock(["fine", name]).acquire().await);
    drop(here.lock(name).run(async {}).await);
    drop(dlock::lock(name).acquire().await);
    drop(here.inspect(name).await);
    drop(here.list(name).await);
    let guard = here.lock(name).acquire().await;
    tracing::info!(?guard, "as somebody logs it");
    for manager in [&here, &there] {
        let busy = manager.lock(name).try_acquire().await;
        let late = manager.lock(name).acquire_within(ms(5)).await;
        for error in [busy.err(), late.err()].into_iter().flatten() {
            tracing::error!(%error, "refused");
            tracing::error!(?error, "refused");
        }
    }
    drop(guard);
    settle().await;
    // One after the other, and then in the other order.
    for [outer, inner] in [[name, "other"], ["other", name]] {
        let nested = async { there.lock(inner).acquire_within(ms(5)).await };
        let outer = there.lock(outer).patience(Patience::Within(ms(5)));
        drop(outer.run(nested).await);
    }
    let guard = here.lock(name).acquire().await;
    memory.faults().set_unavailable(true);
    drop(there.lock(name).acquire().await);
    drop(guard);
    settle().await;
    memory.faults().set_unavailable(false);
    tokio::time::sleep(ms(60_000)).await;
    let guard = here.lock(name).try_acquire().await;
    memory.faults().take_away(name);
    tokio::time::sleep(ms(60_000)).await;
    drop(guard);
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_forges_no_line_and_fills_no_log() {
    for (name, is_a_key) in [
        ("a\nERROR forged: every lock is lost".to_owned(), false),
        ("a\r\u{1b}[2Kforged".to_owned(), false),
        ("b\u{85}forged".to_owned(), false),
        ("c\u{2028}forged \u{202e}\u{2066}".to_owned(), true),
        ("d".repeat(512), true),
        ("e".repeat(1 << 20), false),
    ] {
        let lines = Lines::default();
        // For the tasks of the store's keeper too: this runtime has one thread.
        let subscribed = tracing::subscriber::set_default(subscriber(&lines));
        use_as_a_key(&name).await;
        drop(subscribed);
        let text = lines.text();
        assert!(!text.is_empty(), "nothing was logged of {name:?}");
        let shown = format!("key={}", &name[..1]);
        let granted = |line: &str| line.contains("granted") && line.contains(&shown);
        assert_eq!(text.lines().any(granted), is_a_key, "{text}");
        assert!(text.contains("not had"), "{text}");
        for line in text.lines() {
            // Each begins with the time.
            assert!(line.starts_with("20"), "{line:?}");
            assert!(line.len() < 2_000, "{} bytes: {line:?}", line.len());
        }
        for unprintable in ['\r', '\u{1b}', '\u{85}', '\u{2028}', '\u{202e}', '\u{2066}'] {
            assert!(!text.contains(unprintable), "{text:?}");
        }
    }
}
