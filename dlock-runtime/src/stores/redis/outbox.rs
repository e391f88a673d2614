//! Commands of many tasks, sent as one.
//!
//! What the tasks of a runtime ask for while its connection is busy goes out
//! together: one message to the client's connection, one timer, and one
//! `INCRBY` for all the locks that are taken. With many tasks that costs half
//! of what each of them would cost alone, and a lone one does not notice. No
//! command waits for another's answer.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::vec;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::oneshot;

use super::commands;
use super::lost::Lost;
use super::names::Keyspace;
use crate::token::TOKENS_PER_GRANT;

/// Where the tasks put their commands.
pub(super) struct Outbox(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: Waiting,
    /// Wakes the task that empties the outbox, if that has nothing to do.
    idle: Option<Waker>,
    /// What is waiting may go out together with what is about to come.
    awaits_next: bool,
    closed: bool,
}

/// The commands that nobody has sent yet.
#[derive(Default)]
struct Waiting {
    takes: Vec<Letter<[Value; 2]>>,
    others: Vec<Letter<Value>>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.takes.is_empty() && self.others.is_empty()
    }
}

struct Letter<A> {
    command: Cmd,
    answer: oneshot::Sender<Result<A, Lost>>,
}

/// The answer to a command, or that there will be none.
pub(super) type Pending<A> = oneshot::Receiver<Result<A, Lost>>;

/// What is sent together, and those who wait for the answers.
pub(super) struct Batch {
    commands: Pipeline,
    takes: Vec<oneshot::Sender<Result<[Value; 2], Lost>>>,
    others: Vec<oneshot::Sender<Result<Value, Lost>>>,
}

enum Collected {
    Batch(Batch),
    Nothing,
    Closed,
}

/// Sends what is in an outbox.
pub(super) struct Postman<B> {
    /// In the order in which they were sent, which is that of their answers.
    in_flight: VecDeque<Pin<Box<B>>>,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    /// A command that takes a free lock. Its answer comes with that of the
    /// `INCRBY` behind it, as if that were for it alone.
    pub(super) fn take(&self, command: Cmd) -> Pending<[Value; 2]> {
        self.put(command, |waiting| &mut waiting.takes)
    }

    pub(super) fn send(&self, command: Cmd) -> Pending<Value> {
        self.put(command, |waiting| &mut waiting.others)
    }

    /// A command that waits for the next one, but no longer than until the task
    /// that empties the outbox has let the others run once.
    pub(super) fn send_with_the_next(&self, command: Cmd) -> Pending<Value> {
        self.post(command, true, |waiting| &mut waiting.others)
    }

    fn put<A>(
        &self,
        command: Cmd,
        place: impl FnOnce(&mut Waiting) -> &mut Vec<Letter<A>>,
    ) -> Pending<A> {
        self.post(command, false, place)
    }

    fn post<A>(
        &self,
        command: Cmd,
        awaits_next: bool,
        place: impl FnOnce(&mut Waiting) -> &mut Vec<Letter<A>>,
    ) -> Pending<A> {
        let (answer, pending) = oneshot::channel();
        let mut state = self.state();
        state.awaits_next = awaits_next && state.waiting.is_empty();
        // Once closed, the sender is dropped here, and that is the answer.
        if !state.closed {
            place(&mut state.waiting).push(Letter { command, answer });
        }
        let idle = state.idle.take();
        drop(state);
        if let Some(idle) = idle {
            idle.wake();
        }
        pending
    }

    /// Whether everything in it has been sent.
    pub(super) fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// Takes no more commands, drops those that were not sent, and tells the
    /// task that empties it.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let unsent = std::mem::take(&mut state.waiting);
        let idle = state.idle.take();
        drop(state);
        drop(unsent);
        if let Some(idle) = idle {
            idle.wake();
        }
    }

    fn collect(&self, context: &Context<'_>) -> Collected {
        let mut state = self.state();
        if state.closed {
            return Collected::Closed;
        }
        if state.waiting.is_empty() {
            match &mut state.idle {
                Some(idle) => idle.clone_from(context.waker()),
                idle => *idle = Some(context.waker().clone()),
            }
            return Collected::Nothing;
        }
        if std::mem::take(&mut state.awaits_next) {
            context.waker().wake_by_ref();
            return Collected::Nothing;
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        Collected::Batch(Batch::new(waiting))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batch {
    fn new(waiting: Waiting) -> Self {
        let Waiting { takes, others } = waiting;
        let mut batch = Self {
            commands: Pipeline::with_capacity(takes.len() + 1 + others.len()),
            takes: Vec::with_capacity(takes.len()),
            others: Vec::with_capacity(others.len()),
        };
        // What nobody waits for any more is not sent at all. Locks are taken
        // behind what may be the releases of the same.
        for Letter { command, answer } in others {
            if !answer.is_closed() {
                batch.commands.add_command(command);
                batch.others.push(answer);
            }
        }
        for Letter { command, answer } in takes {
            if !answer.is_closed() {
                batch.commands.add_command(command);
                batch.takes.push(answer);
            }
        }
        if !batch.takes.is_empty() {
            batch
                .commands
                .add_command(commands::draw_tokens(&Keyspace::Server, batch.takes.len()));
        }
        batch
    }

    pub(super) fn commands(&self) -> &Pipeline {
        &self.commands
    }

    /// Tells everybody that there is no answer.
    pub(super) fn fail(self, lost: &Lost) {
        for take in self.takes {
            let _ = take.send(Err(lost.clone()));
        }
        for other in self.others {
            let _ = other.send(Err(lost.clone()));
        }
    }

    /// The answers, on their way to those who wait for them.
    pub(super) fn answered(self, answers: Vec<Value>) -> Deliveries {
        Deliveries {
            count: self.takes.len(),
            drawn: answers.last().cloned().unwrap_or_default(),
            others: self.others.into_iter(),
            takes: self.takes.into_iter(),
            answers: answers.into_iter(),
        }
    }
}

/// Delivers one answer each time that it is asked for the next; dropped, all that
/// are left.
pub(super) struct Deliveries {
    others: vec::IntoIter<oneshot::Sender<Result<Value, Lost>>>,
    takes: vec::IntoIter<oneshot::Sender<Result<[Value; 2], Lost>>>,
    answers: vec::IntoIter<Value>,
    /// The answer of the `INCRBY` for so many, if there are any.
    drawn: Value,
    count: usize,
}

impl Iterator for Deliveries {
    type Item = ();

    fn next(&mut self) -> Option<()> {
        if let Some(other) = self.others.next() {
            let _ = other.send(Ok(self.answers.next()?));
            return Some(());
        }
        let take = self.takes.next()?;
        let index = self.count - 1 - self.takes.len();
        let drawn = match &self.drawn {
            Value::Int(last) => Value::Int(share(*last, index, self.count)),
            error => error.clone(),
        };
        let _ = take.send(Ok([self.answers.next()?, drawn]));
        Some(())
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// The last number of one of `count` equal shares of those that were drawn.
fn share(last: i64, index: usize, count: usize) -> i64 {
    let behind = (count - 1 - index) as u64 * TOKENS_PER_GRANT;
    last.saturating_sub_unsigned(behind)
}

impl<B: Future<Output = ()>> Postman<B> {
    pub(super) fn new() -> Self {
        Self {
            in_flight: VecDeque::new(),
        }
    }

    /// Sends what has been put into the outbox; is done when that was closed.
    /// To be polled before that which does the writing.
    pub(super) fn send(
        &mut self,
        outbox: &Outbox,
        send: impl Fn(Batch) -> B,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            match outbox.collect(context) {
                Collected::Batch(batch) => {
                    let mut batch = Box::pin(send(batch));
                    if batch.as_mut().poll(context).is_pending() {
                        self.in_flight.push_back(batch);
                    }
                }
                Collected::Nothing => return Poll::Pending,
                Collected::Closed => return Poll::Ready(()),
            }
        }
    }

    /// Delivers the answers that have come. To be polled behind that which
    /// does the reading.
    pub(super) fn deliver(&mut self, context: &mut Context<'_>) {
        while let Some(first) = self.in_flight.front_mut()
            && first.as_mut().poll(context).is_ready()
        {
            self.in_flight.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    fn values(count: usize) -> Vec<Value> {
        (0..count)
            .map(|number| Value::SimpleString(number.to_string()))
            .collect()
    }

    #[test]
    fn each_gets_its_own_answer_and_its_own_numbers() {
        let outbox = Outbox::new();
        let context = &mut Context::from_waker(Waker::noop());
        let mut other = outbox.send(redis::cmd("OTHER"));
        let mut takes = [(); 3].map(|()| outbox.take(redis::cmd("SET")));
        let dropped = outbox.take(redis::cmd("DROPPED"));
        drop(dropped);

        let Collected::Batch(batch) = outbox.collect(context) else {
            panic!("something was put in");
        };
        let sent: Vec<_> = batch
            .commands()
            .cmd_iter()
            .map(|command| String::from_utf8(command.get_packed_command()).expect("text"))
            .collect();
        assert_eq!(sent.len(), 5, "{sent:?}");
        assert!(
            sent[4].contains("INCRBY") && sent[4].contains("192"),
            "{sent:?}"
        );
        assert!(matches!(outbox.collect(context), Collected::Nothing));

        let mut answers = values(5);
        answers[4] = Value::Int(1192);
        let mut deliveries = batch.answered(answers);
        deliveries.next();
        drop(deliveries);
        for (index, take) in takes.iter_mut().enumerate() {
            let [set, last] = take.try_recv().expect("delivered").expect("an answer");
            assert_eq!(set, Value::SimpleString((1 + index).to_string()));
            assert_eq!(last, Value::Int(1064 + 64 * index as i64));
        }
        let other = other.try_recv().expect("delivered").expect("an answer");
        assert_eq!(other, Value::SimpleString("0".to_owned()));
    }

    #[test]
    fn what_waits_for_the_next_goes_out_with_it() {
        let (outbox, woken) = (Outbox::new(), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let context = &Context::from_waker(&waker);
        let sent = |count: usize| match outbox.collect(context) {
            Collected::Batch(batch) => assert_eq!(batch.commands().len(), count),
            _ => panic!("nothing was sent"),
        };
        let nothing_sent = || assert!(matches!(outbox.collect(context), Collected::Nothing));

        nothing_sent();
        let _release = outbox.send_with_the_next(redis::cmd("DEL"));
        assert_eq!(woken.times(), 1);
        nothing_sent();
        assert_eq!(woken.times(), 2, "it comes back by itself");
        let _take = outbox.take(redis::cmd("SET"));
        sent(3);

        // What came is sent at once, and what nobody follows the next time.
        nothing_sent();
        let _release = outbox.send_with_the_next(redis::cmd("DEL"));
        let _take = outbox.take(redis::cmd("SET"));
        sent(3);
        let _alone = outbox.send_with_the_next(redis::cmd("DEL"));
        nothing_sent();
        sent(1);
        // Those who came before wait for nobody.
        let _before = outbox.send(redis::cmd("GET"));
        let _release = outbox.send_with_the_next(redis::cmd("DEL"));
        sent(2);
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Woken {
        fn times(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_closed_outbox_answers_at_once() {
        let outbox = Outbox::new();
        let mut before = outbox.send(redis::cmd("GET"));
        outbox.close();
        let mut after = outbox.send(redis::cmd("GET"));
        for pending in [&mut before, &mut after] {
            let closed = pending.try_recv().expect_err("no answer");
            assert_eq!(closed, oneshot::error::TryRecvError::Closed);
        }
        let context = &Context::from_waker(Waker::noop());
        assert!(matches!(outbox.collect(context), Collected::Closed));
    }
}
