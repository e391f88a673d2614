//! `dlock doctor`: whether locks can be relied on here.

mod report;
mod test_lock;
mod warnings;

use std::time::{Duration, Instant};

use dlock::backend::{Capabilities, TokenTier};
use dlock::{Config, LockError, LockManager};

use self::report::Report;
use crate::args::{Common, Doctor};
use crate::exit::Exit;
use crate::{say, store};

/// The quickest of so many is how long one takes.
const ROUND_TRIPS: u32 = 3;

pub(crate) fn doctor(args: &Doctor, common: &Common) -> Result<Exit, Exit> {
    let config = store::config(common)?;
    let mut report = Report::default();
    store::block_on(async {
        examine(config, &mut report).await;
        Ok(())
    })?;
    report.print(args.output)?;
    Ok(report.exit())
}

/// Goes on for as long as there is something to go on with.
async fn examine(config: Config, report: &mut Report) {
    // What connecting warns of is what somebody who asks wants to know.
    let heard = warnings::heard(!say::is_verbose(), LockManager::connect(config.clone()));
    let (connected, warned) = heard.await;
    let manager = match connected {
        Ok(manager) => manager,
        Err(error) => {
            report.failed("connect", &error);
            return;
        }
    };
    let capabilities = manager.capabilities();
    report.ok("connect", format!("to {}", capabilities.name));
    let found = manager.examine().await;
    for warning in warned {
        // It may be found by who looks, too.
        if found.iter().all(|finding| finding.message != warning) {
            report.warn("setting", warning);
        }
    }
    report.found(found);
    tokens(capabilities, report);
    if let Err(error) = round_trip(&manager, report).await {
        report.failed("round trip", &error);
    } else {
        test_lock::take(&manager, config, report).await;
        if let Err(error) = manager.list(test_lock::PREFIX).await {
            report.refused("list", &error);
        } else {
            report.ok("list", "locks can be listed".to_owned());
        }
    }
    store::close(&manager).await;
}

fn tokens(capabilities: Capabilities, report: &mut Report) {
    let with = capabilities.strict_with;
    let said = match capabilities.tokens {
        TokenTier::Strict => "strict: they rise whatever happens to the store".to_owned(),
        TokenTier::None => "none: a holder that was paused is not told from the next".to_owned(),
        _ if with.is_empty() => "best effort: they may repeat when the store loses data".to_owned(),
        _ => format!("best effort: they may repeat when the store loses data; strict with {with}"),
    };
    report.ok("tokens", said);
}

async fn round_trip(manager: &LockManager, report: &mut Report) -> Result<(), LockError> {
    let mut quickest = Duration::MAX;
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        manager.ping().await?;
        quickest = quickest.min(begun.elapsed());
    }
    report.ok("round trip", format!("{quickest:.1?}"));
    Ok(())
}
