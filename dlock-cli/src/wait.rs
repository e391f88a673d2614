//! `dlock wait`: waits for the lock, takes it, and gives it back at once.

use dlock::LockError;

use crate::args::{Common, Wait};
use crate::exit::Exit;
use crate::run::signals::Signals;
use crate::{connect, say, store};

pub(crate) fn wait(args: &Wait, common: &Common) -> Result<Exit, Exit> {
    let config = store::config(common)?;
    store::block_on(async {
        let mut signals = Signals::listen()?;
        let patience = connect::patience(args.timeout);
        let (manager, patience) = connect::connect(config, patience, &mut signals).await?;
        let request = manager.lock(&args.key).template("dlock wait");
        let had = tokio::select! {
            had = request.patience(patience).acquire() => had,
            signal = signals.ends() => {
                store::close(&manager).await;
                return Ok(Exit::Signal(signal));
            }
        };
        let exit = match had {
            Ok(guard) => {
                if let Err(error) = guard.release().await {
                    say::error(&error);
                }
                Exit::OK
            }
            // The work is remembered as done, so nobody holds the lock.
            Err(LockError::Done { .. }) => Exit::OK,
            Err(error) => Exit::of(&error),
        };
        store::close(&manager).await;
        Ok(exit)
    })
}
