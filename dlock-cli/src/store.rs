//! The store that the command line or the environment names.

use std::future::Future;
use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use crate::args::Common;
use crate::exit::Exit;
use crate::say;

/// How long the tool waits at its end for releases that the store does not answer.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The configuration. `memory:` is refused, because its locks keep no other process out.
pub(crate) fn config(common: &Common) -> Result<Config, Exit> {
    let config = match &common.url {
        Some(url) => Config::from_env_at(url),
        // The library's own message would propose `memory:`.
        None if std::env::var_os("DLOCK_URL").is_none_or(|url| url.is_empty()) => {
            say::line(
                "no store is named; set DLOCK_URL, for example to redis://127.0.0.1:6379, or give \
                 --url",
            );
            return Err(Exit::CONFIG);
        }
        None => Config::from_env(),
    };
    let config = config.map_err(|error| Exit::of(&error))?;
    if config.is_memory() {
        say::line(
            "`memory:` has locks of one process only, and protects nothing here; name a store \
             that is shared, such as redis://127.0.0.1:6379",
        );
        return Err(Exit::CONFIG);
    }
    // A run makes only one request, so there is no order of locks to check.
    Ok(config.detect_lock_order(false))
}

pub(crate) async fn connect(config: Config) -> Result<LockManager, Exit> {
    LockManager::connect(config)
        .await
        .map_err(|error| Exit::of(&error))
}

/// Waits for releases that are under way, but not for long: if they fail, the ttl ends the lease.
pub(crate) async fn close(manager: &LockManager) {
    let _ = tokio::time::timeout(LAST_WAIT, manager.shutdown()).await;
}

/// Runs `work` on a runtime of its own, and does not wait for tasks that still run when it is done.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Exit>>) -> Result<T, Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(work);
            runtime.shutdown_background();
            done
        }
        Err(error) => {
            say::line(format_args!("cannot begin: {error}"));
            Err(Exit::SYSTEM)
        }
    }
}

/// Connects, asks the store one question, and disconnects.
pub(crate) fn ask<T, F>(common: &Common, question: impl FnOnce(LockManager) -> F) -> Result<T, Exit>
where
    F: Future<Output = Result<T, LockError>>,
{
    let config = config(common)?;
    block_on(async {
        let manager = connect(config).await?;
        let answer = question(manager.clone()).await;
        close(&manager).await;
        answer.map_err(|error| Exit::of(&error))
    })
}
