//! Keeps the code of a future in the binary once.
//!
//! The compiler puts the code of a future into each part of the crate (there are 16 by default)
//! that polls or drops it. A function that is not inlined is compiled in one part only. So a future
//! that such a function boxes as a `dyn`, or polls, is compiled once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::future::join_all;
use pin_project_lite::pin_project;
use tokio::sync::mpsc;

use crate::sync::Mutex;

/// Boxes a future, so that its callers contain no code to poll or drop it.
#[inline(never)]
pub(crate) fn apart<'a, T>(work: impl Future<Output = T> + Send + 'a) -> BoxFuture<'a, T> {
    Box::pin(work)
}

/// Runs these together, and returns their outputs in the same order.
///
/// In place of `join_all`, which is compiled for each type of future and of output, and polls a
/// future in two places: as one of a few, and as one of many.
pub(crate) fn all<'a, T: Send + 'a>(
    work: impl IntoIterator<Item: Future<Output = T> + Send + 'a>,
) -> BoxFuture<'a, Vec<T>> {
    let outputs = Arc::new(Mutex::new(Vec::new()));
    let each = work.into_iter().enumerate().map(|(index, one)| {
        let outputs = Arc::clone(&outputs);
        outputs.lock().push(None);
        apart(async move {
            let output = one.await;
            outputs.lock()[index] = Some(output);
        })
    });
    let each = each.collect();
    apart(async move {
        run(each).await;
        let outputs = std::mem::take(&mut *outputs.lock());
        outputs.into_iter().flatten().collect()
    })
}

/// Like [`all`], but ends with the first error.
pub(crate) fn try_all<'a, T: Send + 'a, E: Send + 'a>(
    work: impl IntoIterator<Item: Future<Output = Result<T, E>> + Send + 'a>,
) -> BoxFuture<'a, Result<Vec<T>, E>> {
    let (failed, mut failure) = mpsc::unbounded_channel();
    let work = work.into_iter().map(|one| {
        let failed = failed.clone();
        async move {
            // Nobody listens any more after another error.
            one.await.map_err(|error| failed.send(error)).ok()
        }
    });
    let outputs = all(work.collect::<Vec<_>>());
    apart(async move {
        tokio::select! {
            biased;
            Some(error) = failure.recv() => Err(error),
            outputs = outputs => match failure.try_recv() {
                Ok(error) => Err(error),
                Err(_) => Ok(outputs.into_iter().flatten().collect()),
            },
        }
    })
}

fn run(work: Vec<BoxFuture<'_, ()>>) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        join_all(work).await;
    })
}

pin_project! {
    /// Like [`apart`], but without a box, for the path of every section. Only the code that polls
    /// the future is compiled once; the code that drops it is still in each caller.
    pub(crate) struct Outlined<F> {
        #[pin]
        work: F,
    }
}

pub(crate) fn outlined<F: Future>(work: F) -> Outlined<F> {
    Outlined { work }
}

impl<F: Future> Future for Outlined<F> {
    type Output = F::Output;

    #[inline(never)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.project().work.poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn outputs_are_in_the_order_of_the_futures() {
        for number in [0, 3, 100] {
            let late = (0..number).map(async |index: u64| {
                sleep(Duration::from_millis(number - index)).await;
                index
            });
            assert_eq!(all(late).await, Vec::from_iter(0..number));
        }
    }

    #[tokio::test]
    async fn the_first_error_ends_the_others() {
        let ready_or_pending = [Some(Ok(1)), None, Some(Err("no"))];
        let work = ready_or_pending.map(async |it: Option<Result<u8, &str>>| match it {
            Some(it) => ready(it).await,
            None => pending().await,
        });
        assert_eq!(try_all(work).await, Err("no"));
        let fine = [1, 2].map(async |it: u8| Ok::<_, ()>(it));
        assert_eq!(try_all(fine).await, Ok(vec![1, 2]));
        let failed = [Ok(1), Err("no")].map(async |it: Result<u8, &str>| it);
        assert_eq!(try_all(failed).await, Err("no"));
    }
}
