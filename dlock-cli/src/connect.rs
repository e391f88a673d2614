//! The way to the lock for those who wait: all of it takes no longer than they want, and a
//! signal ends it.

use std::time::Duration;

use dlock::{Config, LockManager, Patience};
use tokio::time::{Instant, timeout};

use crate::exit::Exit;
use crate::run::signals::Signals;
use crate::{say, store};

/// What `-w` says, if it is there.
pub(crate) fn patience(timeout: Option<Duration>) -> Patience {
    timeout.map_or(Patience::Configured, Patience::Within)
}

/// Connects, and says for how long the lock is waited for then. Who does not wait for a lock
/// waits for the store all the same.
pub(crate) async fn connect(
    config: Config,
    patience: Patience,
    signals: &mut Signals,
) -> Result<(LockManager, Patience), Exit> {
    let began = Instant::now();
    let connecting = async {
        match patience {
            Patience::Within(limit) if !limit.is_zero() => {
                let connected = timeout(limit, store::connect(config)).await;
                let manager = connected.map_err(|_| silent(limit))??;
                let left = limit.saturating_sub(began.elapsed());
                // None at all would be another wish: not to wait.
                if left.is_zero() {
                    return Err(silent(limit));
                }
                Ok((manager, Patience::Within(left)))
            }
            patience => Ok((store::connect(config).await?, patience)),
        }
    };
    tokio::select! {
        connected = connecting => connected,
        signal = signals.ends() => Err(Exit::of_signal(signal)),
    }
}

fn silent(limit: Duration) -> Exit {
    say::line(format_args!(
        "the store did not answer within {limit:?}, the time of -w; see that it runs, with \
         `dlock doctor`, or raise -w"
    ));
    Exit::DOWN
}
