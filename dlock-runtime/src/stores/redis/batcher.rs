//! Sends the commands of many tasks together.
//!
//! The commands that the tasks of a runtime put in while its connection is busy are sent
//! together: with one message to the client's connection, one timer, and one `INCRBY` for all the
//! locks that are taken. With many tasks this costs half of what separate commands would cost,
//! and a single task does not notice it. No command waits for another one's answer, except for
//! [`How::Confirmed`].

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::vec;

use redis::{Cmd, Pipeline, RedisError, ServerError, Value};
use tokio::sync::oneshot;

use super::commands;
use super::names::Keyspace;
use crate::sync::Mutex;
use crate::token::TOKENS_PER_GRANT;

/// Why a command has no answer. It is unknown whether the server has run it or will run it.
#[derive(Clone, Debug)]
pub(super) enum Lost {
    /// The connection broke.
    Broken(RedisError),
    /// No answer came in the time that an answer may take: the connection seems to be dead.
    Silent,
    /// The caller's time has passed. The connection may be healthy.
    TooLate,
}

impl Lost {
    /// The error that the server answered, if it did.
    pub(super) fn refusal(self) -> Option<ServerError> {
        match self {
            Self::Broken(error) => ServerError::try_from(error).ok(),
            Self::Silent | Self::TooLate => None,
        }
    }
}

/// The queue into which tasks put their commands.
pub(super) struct Batcher {
    state: Mutex<State>,
    /// The command that is sent behind each batch of [confirmed](How::Confirmed) commands.
    wait: Option<Cmd>,
}

#[derive(Default)]
struct State {
    /// The commands that have not been sent yet.
    waiting: Waiting,
    /// Wakes the task that sends them, if it is idle.
    idle: Option<Waker>,
    /// The waiting command may be sent together with the next one, which is expected soon.
    awaits_next: bool,
    /// The commands are [confirmed](How::Confirmed).
    confirms: bool,
    closed: bool,
}

#[derive(Default)]
struct Waiting {
    takes: Vec<PendingCommand>,
    others: Vec<PendingCommand>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.takes.is_empty() && self.others.is_empty()
    }
}

struct PendingCommand {
    command: Cmd,
    answer: Answer,
}

/// Sends the answer to a command. With [`How::Take`], the second value is the answer to `INCRBY`
/// as if it had been for this command alone; with [`How::Confirmed`], the answer to `WAIT`.
type Answer = oneshot::Sender<Result<[Value; 2], Lost>>;

/// Receives the answer to a command. Fails if none will come.
pub(super) type Pending = oneshot::Receiver<Result<[Value; 2], Lost>>;

/// How a command is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It takes a free lock: a token is drawn behind it.
    Take,
    Plain,
    /// It waits for the next command, but only until the sending task has let the other tasks run
    /// once.
    WithTheNext,
    /// A `WAIT` is sent behind it, which delays everything that is sent later. So the later
    /// commands are collected, and sent together once this one was answered. Either all commands
    /// of a connection are sent in this way, or none.
    Confirmed,
}

/// Commands that are sent together, and the receivers of their answers.
pub(super) struct Batch {
    commands: Pipeline,
    answers: Vec<Answer>,
    /// The number of commands, at the end, that share the answer to the last command.
    share: usize,
    is_confirmed: bool,
}

/// Sends the commands of a batcher.
pub(super) struct Dispatcher<B> {
    /// In the order in which they were sent, which is also the order of their answers.
    in_flight: VecDeque<Pin<Box<B>>>,
    /// New commands are sent only after those in flight have been answered.
    holds: bool,
}

impl Batcher {
    pub(super) fn new(wait: Option<Cmd>) -> Self {
        Self {
            state: Mutex::default(),
            wait,
        }
    }

    pub(super) fn put(&self, command: Cmd, how: How) -> Pending {
        let (answer, pending) = oneshot::channel();
        let mut state = self.state.lock();
        state.awaits_next = how == How::WithTheNext && state.waiting.is_empty();
        state.confirms = how == How::Confirmed;
        // If the batcher is closed, the sender is dropped here, and the receiver fails.
        if !state.closed {
            let waiting = match how {
                How::Take => &mut state.waiting.takes,
                How::Plain | How::WithTheNext | How::Confirmed => &mut state.waiting.others,
            };
            waiting.push(PendingCommand { command, answer });
        }
        let idle = state.idle.take();
        drop(state);
        if let Some(idle) = idle {
            idle.wake();
        }
        pending
    }

    /// Whether no command waits to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Refuses further commands, drops those that were not sent, and wakes the task that sends
    /// them.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let unsent = std::mem::take(&mut state.waiting);
        let idle = state.idle.take();
        drop(state);
        drop(unsent);
        if let Some(idle) = idle {
            idle.wake();
        }
    }

    /// The batch to be sent now. `None`: the batcher is closed.
    fn poll_batch(&self, context: &Context<'_>, holds: bool) -> Poll<Option<Batch>> {
        let mut state = self.state.lock();
        if state.closed {
            return Poll::Ready(None);
        }
        if holds || state.waiting.is_empty() {
            match &mut state.idle {
                Some(idle) => idle.clone_from(context.waker()),
                idle => *idle = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        if std::mem::take(&mut state.awaits_next) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let waiting = std::mem::take(&mut state.waiting);
        let wait = self.wait.as_ref().filter(|_| state.confirms);
        drop(state);
        Poll::Ready(Some(Batch::new(waiting, wait)))
    }
}

impl Batch {
    /// Commands whose caller has left are not sent. Locks are taken behind the other commands,
    /// which may be releases of the same locks.
    fn new(waiting: Waiting, wait: Option<&Cmd>) -> Self {
        let count = waiting.others.len() + waiting.takes.len();
        let mut batch = Self {
            commands: Pipeline::with_capacity(count + 1),
            answers: Vec::with_capacity(count),
            share: 0,
            is_confirmed: false,
        };
        batch.add(waiting.others);
        let others = batch.answers.len();
        batch.add(waiting.takes);
        let takes = batch.answers.len() - others;
        if takes > 0 {
            let draw = commands::draw_tokens(&Keyspace::Server, takes);
            batch.commands.add_command(draw);
            batch.share = takes;
        } else if let Some(wait) = wait.filter(|_| others > 0) {
            batch.commands.add_command(wait.clone());
            batch.share = others;
            batch.is_confirmed = true;
        }
        batch
    }

    fn add(&mut self, pending: Vec<PendingCommand>) {
        for PendingCommand { command, answer } in pending {
            if !answer.is_closed() {
                self.commands.add_command(command);
                self.answers.push(answer);
            }
        }
    }

    pub(super) fn commands(&self) -> &Pipeline {
        &self.commands
    }

    /// Tells all receivers that there is no answer.
    pub(super) fn fail(self, lost: &Lost) {
        for answer in self.answers {
            let _ = answer.send(Err(lost.clone()));
        }
    }

    /// Pairs the answers with their receivers.
    pub(super) fn answered(self, values: Vec<Value>) -> Deliveries {
        Deliveries {
            answers: self.answers.into_iter(),
            share: self.share,
            tokens: match self.is_confirmed {
                true => 0,
                false => TOKENS_PER_GRANT,
            },
            shared: values.last().cloned().unwrap_or_default(),
            values: values.into_iter(),
        }
    }
}

/// An iterator that delivers one answer at each step. Dropping it delivers the rest.
pub(super) struct Deliveries {
    answers: vec::IntoIter<Answer>,
    values: vec::IntoIter<Value>,
    /// The answer to the last command: the number of replicas, or the last of the numbers that
    /// were drawn, `tokens` of them for each receiver.
    shared: Value,
    tokens: u64,
    share: usize,
}

impl Iterator for Deliveries {
    type Item = ();

    fn next(&mut self) -> Option<()> {
        let answer = self.answers.next()?;
        let value = self.values.next()?;
        let behind = self.answers.len();
        let shared = match &self.shared {
            _ if behind >= self.share => Value::Nil,
            Value::Int(last) => {
                Value::Int(last.saturating_sub_unsigned(behind as u64 * self.tokens))
            }
            error => error.clone(),
        };
        let _ = answer.send(Ok([value, shared]));
        Some(())
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl<B: Future<Output = ()>> Dispatcher<B> {
    pub(super) fn new() -> Self {
        Self {
            in_flight: VecDeque::new(),
            holds: false,
        }
    }

    /// Sends what has been put into the batcher. Ready when the batcher is closed. Must be polled
    /// before the future that writes to the socket.
    pub(super) fn send(
        &mut self,
        batcher: &Batcher,
        send: impl Fn(Batch) -> B,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        while let Some(batch) = ready!(batcher.poll_batch(context, self.holds)) {
            self.holds = batch.is_confirmed;
            let mut batch = Box::pin(send(batch));
            if batch.as_mut().poll(context).is_pending() {
                self.in_flight.push_back(batch);
            }
        }
        Poll::Ready(())
    }

    /// Delivers the answers that have come. Returns whether commands that had to wait for them
    /// may be sent now. Must be polled after the future that reads from the socket.
    pub(super) fn deliver(&mut self, context: &mut Context<'_>) -> bool {
        while let Some(first) = self.in_flight.front_mut()
            && first.as_mut().poll(context).is_ready()
        {
            self.in_flight.pop_front();
        }
        self.in_flight.is_empty() && std::mem::take(&mut self.holds)
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
        let batcher = Batcher::new(None);
        let context = &mut Context::from_waker(Waker::noop());
        let mut other = batcher.put(redis::cmd("OTHER"), How::Plain);
        let mut takes = [(); 3].map(|()| batcher.put(redis::cmd("SET"), How::Take));
        let dropped = batcher.put(redis::cmd("DROPPED"), How::Take);
        drop(dropped);

        let Poll::Ready(Some(batch)) = batcher.poll_batch(context, false) else {
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
        assert!(batcher.poll_batch(context, false).is_pending());

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
        let [other, _] = other.try_recv().expect("delivered").expect("an answer");
        assert_eq!(other, Value::SimpleString("0".to_owned()));
    }

    #[test]
    fn what_waits_for_the_next_goes_out_with_it() {
        let (batcher, woken) = (Batcher::new(None), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let context = &Context::from_waker(&waker);
        let sent = |count: usize| match batcher.poll_batch(context, false) {
            Poll::Ready(Some(batch)) => assert_eq!(batch.commands().len(), count),
            _ => panic!("nothing was sent"),
        };
        let nothing_sent = || assert!(batcher.poll_batch(context, false).is_pending());

        nothing_sent();
        let _release = batcher.put(redis::cmd("DEL"), How::WithTheNext);
        assert_eq!(woken.times(), 1);
        nothing_sent();
        assert_eq!(woken.times(), 2, "it comes back by itself");
        let _take = batcher.put(redis::cmd("SET"), How::Take);
        sent(3);

        // If the next command has come, both are sent at once; if not, the release is sent alone
        // at the next poll.
        nothing_sent();
        let _release = batcher.put(redis::cmd("DEL"), How::WithTheNext);
        let _take = batcher.put(redis::cmd("SET"), How::Take);
        sent(3);
        let _alone = batcher.put(redis::cmd("DEL"), How::WithTheNext);
        nothing_sent();
        sent(1);
        // An earlier command does not wait for a later one.
        let _before = batcher.put(redis::cmd("GET"), How::Plain);
        let _release = batcher.put(redis::cmd("DEL"), How::WithTheNext);
        sent(2);
    }

    /// Each `WAIT` covers all commands that came while the one before was in flight.
    #[test]
    fn what_is_confirmed_goes_out_behind_the_last_that_was() {
        let batcher = Batcher::new(Some(redis::cmd("WAIT")));
        let context = &mut Context::from_waker(Waker::noop());
        let put = || batcher.put(redis::cmd("RENEW"), How::Confirmed);
        let sent = std::cell::RefCell::new(Vec::new());
        let send = |batch: Batch| {
            let (answered, answer) = oneshot::channel::<i64>();
            sent.borrow_mut().push((batch.commands().len(), answered));
            async move {
                let replicas = answer.await.expect("an answer");
                let mut answers = values(batch.commands().len());
                answers.pop();
                answers.push(Value::Int(replicas));
                drop(batch.answered(answers));
            }
        };
        let mut dispatcher = Dispatcher::new();
        let mut first = put();
        assert!(dispatcher.send(&batcher, send, context).is_pending());
        let mut later = [put(), put()];
        assert!(dispatcher.send(&batcher, send, context).is_pending());
        assert!(!dispatcher.deliver(context), "nothing was answered");
        let count = |sent: &Vec<(usize, _)>| sent.iter().map(|(count, _)| *count).collect();
        let counts: Vec<usize> = count(&sent.borrow());
        assert_eq!(counts, [2], "one WAIT at a time");

        let (_, answered) = sent.borrow_mut().remove(0);
        answered.send(1).expect("it is waited for");
        assert!(dispatcher.deliver(context), "more is to be sent");
        let [_, replicas] = first.try_recv().expect("delivered").expect("an answer");
        assert_eq!(replicas, Value::Int(1));
        assert!(dispatcher.send(&batcher, send, context).is_pending());
        let (count, answered) = sent.borrow_mut().remove(0);
        assert_eq!(count, 3, "together");
        answered.send(2).expect("it is waited for");
        assert!(dispatcher.deliver(context));
        for later in &mut later {
            let [_, replicas] = later.try_recv().expect("delivered").expect("an answer");
            assert_eq!(replicas, Value::Int(2));
        }
        // It may be closed while it waits.
        let _pending = put();
        assert!(dispatcher.send(&batcher, send, context).is_pending());
        batcher.close();
        assert!(dispatcher.send(&batcher, send, context).is_ready());
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
    fn a_closed_batcher_answers_at_once() {
        let batcher = Batcher::new(None);
        let mut before = batcher.put(redis::cmd("GET"), How::Plain);
        batcher.close();
        let mut after = batcher.put(redis::cmd("GET"), How::Plain);
        for pending in [&mut before, &mut after] {
            let closed = pending.try_recv().expect_err("no answer");
            assert_eq!(closed, oneshot::error::TryRecvError::Closed);
        }
        let context = &Context::from_waker(Waker::noop());
        let sent = batcher.poll_batch(context, false);
        assert!(matches!(sent, Poll::Ready(None)));
    }
}
