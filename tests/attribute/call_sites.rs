//! What the attribute tells the runtime about the function it stands on.

use dlock::{Config, LockError, LockManager, distributed_lock};

/// Stands for `dlock` in the attributes below, and looks at what they hand over.
mod watched {
    pub(crate) mod __private {
        use std::cell::Cell;

        pub(crate) use dlock::__private::*;

        thread_local! {
            pub(crate) static SEEN: Cell<Option<Options>> = const { Cell::new(None) };
        }

        pub(crate) fn run<F: Future>(
            key: impl Into<LockKey>,
            options: &Options,
            body: F,
        ) -> dlock::Run<F> {
            SEEN.set(Some(*options));
            dlock::__private::run(key, options, body)
        }
    }
}

use watched::__private::{Options, Part, SEEN, Shapes};

/// What the attribute of `call` has handed over.
async fn seen(call: impl Future<Output = Result<(), LockError>>) -> Options {
    let manager = LockManager::connect(Config::default())
        .await
        .expect("memory");
    manager.scope(call).await.expect("a free lock");
    SEEN.take().expect("a call of the attribute's")
}

// The place of the attribute is a line below that of this.
const ABOVE: u32 = line!();
#[distributed_lock(key = "stock:<sku>", crate = watched)]
async fn template(sku: u32) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "nightly", crate = watched)]
async fn constant() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = ["acct:<from>", "audit", account_key(to)], crate = watched)]
async fn list(from: u32, to: u32) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = account_key( id ), crate = watched)]
async fn expression(id: u32) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = [account_key(from), account_key(to)], crate = watched)]
async fn expressions(from: u32, to: u32) -> Result<(), LockError> {
    Ok(())
}

fn account_key(id: u32) -> String {
    format!("account:{id}")
}

const fn part(template: &'static str, shape: &'static str) -> Part {
    Part {
        template,
        shape,
        arguments: &[],
    }
}

macro_rules! inside_a_macro {
    ($key:literal) => {
        #[distributed_lock(key = $key, crate = watched)]
        async fn generated() -> Result<(), LockError> {
            Ok(())
        }
    };
}

const ABOVE_MACRO: u32 = line!();
inside_a_macro!("generated");

#[tokio::test]
async fn the_place_is_the_users() {
    for (call, line) in [
        (seen(template(1)).await, ABOVE + 1),
        (seen(generated()).await, ABOVE_MACRO + 1),
    ] {
        assert_eq!((call.site.file(), call.site.line()), (file!(), line));
    }
}

#[tokio::test]
async fn every_form_of_key_has_a_template() {
    for (call, template, shapes) in [
        (
            seen(template(1)).await,
            "stock:<sku>",
            Shapes::Known(const { &[part("stock:<sku>", "stock:<>")] }),
        ),
        (seen(constant()).await, "nightly", Shapes::Keys),
        (
            seen(list(1, 2)).await,
            "acct:<from>, audit, account_key(to)",
            Shapes::Known(
                const {
                    &[
                        part("acct:<from>", "acct:<>"),
                        part("audit", ""),
                        part("account_key(to)", ""),
                    ]
                },
            ),
        ),
        (seen(expression(1)).await, "account_key(id)", Shapes::Keys),
        (
            seen(expressions(1, 2)).await,
            "account_key(from), account_key(to)",
            Shapes::Keys,
        ),
    ] {
        assert_eq!((call.template, call.shapes), (template, shapes));
    }
}
