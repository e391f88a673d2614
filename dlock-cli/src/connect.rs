//! Connects, for the commands that may wait for a lock: the time to connect counts towards `-w`,
//! and a signal ends it.

use std::time::Duration;

use dlock::{Config, LockManager, Patience};
use tokio::time::{Instant, timeout};

use crate::exit::Exit;
use crate::run::signals::Signals;
use crate::{say, store};

/// How long to wait: as `-w` says, or as configured.
pub(crate) fn patience(timeout: Option<Duration>) -> Patience {
    timeout.map_or(Patience::Configured, Patience::Within)
}

/// Connects, and returns how long to wait for the lock after that. `-n` and `-w 0` mean only that
/// the tool does not wait for a holder: they set no limit to the time to connect.
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
                // `Within` of zero would mean something else: not to wait for a holder.
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
        signal = signals.ends() => Err(Exit::Signal(signal)),
    }
}

fn silent(limit: Duration) -> Exit {
    say::line(format_args!(
        "the store did not answer within {limit:?}, the time of -w; see that it runs, with \
         `dlock doctor`, or raise -w"
    ));
    Exit::DOWN
}
