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

use redis::{Cmd, Pipeline, Value};
use tokio::sync::oneshot;

use super::commands;
use super::connection::Lost;
use crate::token::TOKENS_PER_GRANT;

/// Where the tasks put their commands.
pub(super) struct Outbox(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: Waiting,
    /// Wakes the task that empties the outbox, if that has nothing to do.
    idle: Option<Waker>,
    closed: bool,
}

/// The commands that nobody has sent yet.
#[derive(Default)]
struct Waiting {
    takes: Vec<Letter<[Value; 2]>>,
    others: Vec<Letter<Value>>,
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
    under_way: VecDeque<Pin<Box<B>>>,
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

    fn put<A>(
        &self,
        command: Cmd,
        place: impl FnOnce(&mut Waiting) -> &mut Vec<Letter<A>>,
    ) -> Pending<A> {
        let (answer, pending) = oneshot::channel();
        let mut state = self.state();
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
        if state.waiting.takes.is_empty() && state.waiting.others.is_empty() {
            match &mut state.idle {
                Some(idle) => idle.clone_from(context.waker()),
                idle => *idle = Some(context.waker().clone()),
            }
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
        // What nobody waits for any more is not sent at all.
        for Letter { command, answer } in takes {
            if !answer.is_closed() {
                batch.commands.add_command(command);
                batch.takes.push(answer);
            }
        }
        if !batch.takes.is_empty() {
            batch
                .commands
                .add_command(commands::draw_tokens(batch.takes.len()));
        }
        for Letter { command, answer } in others {
            if !answer.is_closed() {
                batch.commands.add_command(command);
                batch.others.push(answer);
            }
        }
        batch
    }

    pub(super) fn commands(&self) -> &Pipeline {
        &self.commands
    }

    /// Tells everybody what came of it.
    pub(super) fn deliver(self, answers: Result<Vec<Value>, Lost>) {
        let answers = match answers {
            Ok(answers) => answers,
            Err(lost) => {
                for take in self.takes {
                    let _ = take.send(Err(lost.clone()));
                }
                for other in self.others {
                    let _ = other.send(Err(lost.clone()));
                }
                return;
            }
        };
        let mut answers = answers.into_iter();
        if !self.takes.is_empty() {
            let count = self.takes.len();
            let taken: Vec<_> = answers.by_ref().take(count).collect();
            let drawn = answers.next().unwrap_or_default();
            for (index, (take, taken)) in self.takes.into_iter().zip(taken).enumerate() {
                let drawn = match &drawn {
                    Value::Int(last) => Value::Int(share(*last, index, count)),
                    error => error.clone(),
                };
                let _ = take.send(Ok([taken, drawn]));
            }
        }
        for (other, answer) in self.others.into_iter().zip(answers) {
            let _ = other.send(Ok(answer));
        }
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
            under_way: VecDeque::new(),
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
                        self.under_way.push_back(batch);
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
        while let Some(first) = self.under_way.front_mut()
            && first.as_mut().poll(context).is_ready()
        {
            self.under_way.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
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
            sent[3].contains("INCRBY") && sent[3].contains("192"),
            "{sent:?}"
        );
        assert!(matches!(outbox.collect(context), Collected::Nothing));

        let mut answers = values(5);
        answers[3] = Value::Int(1192);
        batch.deliver(Ok(answers));
        for (index, take) in takes.iter_mut().enumerate() {
            let [set, last] = take.try_recv().expect("delivered").expect("an answer");
            assert_eq!(set, Value::SimpleString(index.to_string()));
            assert_eq!(last, Value::Int(1064 + 64 * index as i64));
        }
        let other = other.try_recv().expect("delivered").expect("an answer");
        assert_eq!(other, Value::SimpleString("4".to_owned()));
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
