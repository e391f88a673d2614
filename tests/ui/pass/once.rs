//! Bodies that run once, of every kind of return type: what ends with `Err` is run again.

use async_trait::async_trait;
use dlock::{LockError, distributed_lock};

use crate::support::{ShopError, alone};

type Answer<T> = std::result::Result<T, ShopError>;

#[distributed_lock(key = "aliased:<id>", once = "48h")]
async fn aliased(id: u32, fails: bool) -> Answer<u32> {
    let digits: u32 = "1".parse()?;
    if fails {
        return Err(ShopError::SoldOut);
    }
    Ok(id + digits)
}

#[distributed_lock(key = "plain", once = "1h30m", try, on_error = |error| error.to_string())]
async fn plain() -> String {
    "done".to_owned()
}

#[distributed_lock(key = "nothing", once = "1h", on_error = |_| ())]
async fn nothing(counter: &mut u32) {
    *counter += 1;
}

#[distributed_lock(key = "optional", once = "1h", on_error = |_| None)]
#[expect(clippy::ref_option)]
async fn optional<T: Clone>(value: &Option<T>) -> Option<T> {
    value.clone()
}

#[distributed_lock(key = "nested", once = "1h", on_error = |error| Err(error.to_string()))]
async fn nested(fails: bool) -> Result<Result<u32, ()>, String> {
    if fails {
        Err("no".to_owned())
    } else {
        Ok(Err(()))
    }
}

#[distributed_lock(key = "generic", once = "1h")]
async fn generic<T, E: From<LockError>>(outcome: Result<T, E>) -> Result<T, E> {
    tokio::task::yield_now().await;
    outcome
}

#[distributed_lock(key = "hidden", once = "1h")]
async fn hidden() -> Result<impl Iterator<Item = u32>, LockError> {
    Ok([1, 2].into_iter())
}

/// One key, written as a list.
#[distributed_lock(key = ["listed:<id>"], once = "1h")]
async fn listed(id: u32) -> Result<u32, LockError> {
    Ok(id)
}

#[async_trait]
trait Job {
    async fn run(&self, fails: bool) -> Result<u32, ShopError>;
}

struct Report;

#[async_trait]
impl Job for Report {
    #[distributed_lock(key = "report", once = "48h", try)]
    async fn run(&self, fails: bool) -> Result<u32, ShopError> {
        if fails {
            Err(ShopError::SoldOut)
        } else {
            Ok(1)
        }
    }
}

fn is_done<T>(answer: &Result<T, LockError>) -> bool {
    matches!(answer, Err(LockError::Done { .. }))
}

#[tokio::test]
async fn what_ends_well_is_done_once() {
    alone(async {
        assert!(aliased(7, true).await.is_err());
        assert_eq!(aliased(7, false).await.expect("it runs again"), 8);
        let again = aliased(7, false).await;
        assert!(matches!(again, Err(ShopError::Locked)), "{again:?}");

        assert!(Report.run(true).await.is_err());
        assert_eq!(Report.run(false).await.expect("it runs again"), 1);
        assert!(Report.run(false).await.is_err());

        assert!(generic(Err::<(), _>(ShopError::SoldOut)).await.is_err());
        assert!(generic(Ok::<_, LockError>(())).await.is_ok());
        assert!(is_done(&generic(Ok::<_, LockError>(())).await));

        assert_eq!(listed(7).await.expect("free"), 7);
        assert!(is_done(&listed(7).await));
        assert_eq!(listed(8).await.expect("free"), 8);

        assert_eq!(hidden().await.expect("free").sum::<u32>(), 3);
        assert!(is_done(&hidden().await.map(drop)));
    })
    .await;
}

#[tokio::test]
async fn without_a_result_to_return_is_to_be_done() {
    alone(async {
        assert_eq!(plain().await, "done");
        assert!(plain().await.contains("`plain`"));
        let mut counter = 0;
        for _ in 0..3 {
            nothing(&mut counter).await;
        }
        assert_eq!(counter, 1);
        assert_eq!(optional(&None::<u32>).await, None);
        assert_eq!(optional(&Some(7)).await, None, "it has run");
        // The outer of two says it.
        assert!(nested(true).await.is_err());
        assert_eq!(nested(false).await, Ok(Err(())));
        assert!(nested(false).await.expect_err("done").contains("once"));
    })
    .await;
}
