//! Work that its caller runs while it waits for it, which saves a hop to the manager's thread and
//! back. It still belongs to the manager: it goes on there when the caller leaves, or when somebody
//! else needs its connection, since a caller may stand still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Context;

use futures_util::future::BoxFuture;

use crate::engine::time::Time;
use crate::sync::Mutex;

#[derive(Clone)]
pub(super) struct Lent(Arc<Shared>);

struct Shared {
    /// `None` once it is done, or the manager runs it.
    work: Mutex<Option<BoxFuture<'static, ()>>>,
    is_recalled: AtomicBool,
    time: Time,
}

impl Lent {
    pub(super) fn new(time: &Time, work: BoxFuture<'static, ()>) -> Self {
        Self(Arc::new(Shared {
            work: Mutex::new(Some(work)),
            is_recalled: AtomicBool::new(false),
            time: time.clone(),
        }))
    }

    /// Polls the work, if it is still here.
    pub(super) fn poll(&self, cx: &mut Context<'_>) {
        let mut work = self.0.work.lock();
        if let Some(future) = &mut *work {
            // Its connection and its timers belong to the manager's runtime.
            let _manager = self.0.time.manager().enter();
            if future.as_mut().poll(cx).is_ready() {
                *work = None;
            }
        }
        drop(work);
        self.go_if_recalled();
    }

    /// The manager runs it from now on.
    pub(super) fn recall(&self) {
        self.0.is_recalled.store(true, Ordering::Relaxed);
        self.go_if_recalled();
    }

    /// Gives recalled work to the manager. Whoever is polling it meanwhile checks again after the
    /// poll; this includes the work itself, if it waits for the connection that it has.
    fn go_if_recalled(&self) {
        // Recalling writes the flag and then tries the lock; a poll frees the lock and then reads
        // the flag. One of the two has to see what the other has written.
        fence(Ordering::SeqCst);
        if self.0.is_recalled.load(Ordering::Relaxed)
            && let Some(mut work) = self.0.work.try_lock()
            && let Some(work) = work.take()
        {
            self.0.time.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures_util::FutureExt as _;
    use tokio::runtime::Handle;
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::*;

    fn poll(lent: &Lent) {
        lent.poll(&mut Context::from_waker(Waker::noop()));
    }

    #[tokio::test]
    async fn what_nobody_comes_for_goes_on_at_the_manager() {
        let time = Time::of_the_machine(Handle::current());
        let (tell, told) = oneshot::channel();
        let work = async move {
            yield_now().await;
            tell.send(()).expect("it is waited for");
        };
        let lent = Lent::new(&time, work.boxed());
        poll(&lent);
        lent.recall();
        told.await.expect("it goes on");
        // A late poll finds nothing to do.
        poll(&lent);
    }

    /// Work may ask for the connection that it already has, and so recall itself.
    #[tokio::test]
    async fn what_recalls_itself_goes_on_too() {
        let time = Time::of_the_machine(Handle::current());
        let (tell, told) = oneshot::channel();
        let itself = Arc::new(Mutex::<Option<Lent>>::default());
        let lent = Arc::clone(&itself);
        let work = async move {
            lent.lock().take().expect("it is lent").recall();
            yield_now().await;
            tell.send(()).expect("it is waited for");
        };
        let lent = Lent::new(&time, work.boxed());
        *itself.lock() = Some(lent.clone());
        poll(&lent);
        told.await.expect("it goes on");
    }
}
