//! Futures that are polled manually, and dropped at a chosen poll.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;

use super::runtimes::current_thread;

/// How a future has ended that was polled a limited number of times.
#[derive(Debug, PartialEq, Eq)]
pub enum Polled<T> {
    /// It was done before the limit.
    Done(T),
    /// It was dropped directly after its last allowed poll.
    Dropped,
    /// It was dropped because it was still waiting when the time was over.
    Waiting,
}

/// Polls `future` whenever it is woken, at most `polls` times, and drops it directly after the
/// last poll, or after `patience`.
pub async fn drop_at_poll<F: Future>(
    future: F,
    polls: usize,
    patience: Duration,
) -> Polled<F::Output> {
    let mut future = Box::pin(future);
    // No await between the end of this call and the end of the function, which drops the future.
    leave_at_poll(&mut future, polls, patience).await
}

/// Like [`drop_at_poll`], without the drop.
pub async fn leave_at_poll<F: Future + ?Sized>(
    future: &mut Pin<Box<F>>,
    polls: usize,
    patience: Duration,
) -> Polled<F::Output> {
    let mut left = polls;
    let limited = poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Polled::Done(value));
        }
        left = left.saturating_sub(1);
        if left == 0 {
            Poll::Ready(Polled::Dropped)
        } else {
            Poll::Pending
        }
    });
    timeout(patience, limited).await.unwrap_or(Polled::Waiting)
}

/// Polls `future` like [`leave_at_poll`], on a runtime that has ended when this returns. The
/// caller drops the future.
pub async fn outlive_runtime<F>(
    mut future: Pin<Box<F>>,
    polls: usize,
    patience: Duration,
) -> (Polled<F::Output>, Pin<Box<F>>)
where
    F: Future<Output: Send> + Send + 'static,
{
    let on_a_thread = move || {
        let ended = current_thread().block_on(leave_at_poll(&mut future, polls, patience));
        (ended, future)
    };
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || drop(tell.send(on_a_thread())));
    told.await.expect("no panic")
}

/// Drops a value whose runtime has ended, on a thread without a runtime.
pub fn drop_outside<T: Send + 'static>(value: T) {
    let dropped = std::thread::spawn(move || drop(value));
    dropped.join().expect("no panic");
}

/// Polls `future` once. It must not be done then.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) {
    let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await;
    assert!(polled.is_pending(), "done at its first poll");
}

/// Runs `future` until `condition` holds. It must not be done before.
pub async fn drive_until<F: Future + Unpin>(future: &mut F, condition: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = condition => {}
        _ = future => panic!("done before the condition held"),
    }
}

/// Awaits all futures in the calling task. The results have the order of the futures.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<_> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, done) in running.iter_mut().zip(&mut done) {
            if done.is_none()
                && let Poll::Ready(output) = future.as_mut().poll(context)
            {
                *done = Some(output);
            }
        }
        match done.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}
