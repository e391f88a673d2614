//! `dlock forget`.

use crate::args::{Common, Forget};
use crate::exit::Exit;
use crate::{say, store};

pub(crate) fn forget(args: &Forget, common: &Common) -> Result<Exit, Exit> {
    let forgotten = store::ask(
        common,
        |manager| async move { manager.forget(&args.key).await },
    )?;
    say::line(match forgotten {
        true => format!(
            "lock `{}`: forgotten; it is done again when it is next asked for",
            args.key
        ),
        false => format!("lock `{}`: nothing was remembered", args.key),
    });
    Ok(Exit::OK)
}
