//! A connection, once it is open.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::sync::Notify;

use super::batcher::{Batch, Batcher, Dispatcher, How, Lost, Pending};
use super::commands;
use super::endpoint::Endpoint;
use super::errors::is_unknown;
use super::names::Keyspace;
use super::settings::Settings;
use super::socket::{self, Driver, closed};
use super::timer::{Sending, Timer};
use crate::apart::{apart, outlined};
use crate::deadline::{Deadline, Elapsed};
use crate::engine::time::Time;
use crate::stores::address::Address;
use crate::sync::Mutex;

/// A connection that many tasks use at the same time. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Inner>);

struct Inner {
    /// The address of the server.
    address: Address,
    endpoint: Endpoint,
    multiplexed: MultiplexedConnection,
    batcher: Batcher,
    /// The task that has taken this timer may send without the batcher.
    timer: Mutex<Option<Timer>>,
    token_floor: u64,
    /// How long an answer may take.
    patience: Duration,
    time: Time,
    /// Set if the channels that it listens to belong to slots.
    shards: Option<Arc<Shards>>,
}

/// The state of a connection that listens to channels of slots.
///
/// A node that loses a slot ends the subscriptions to its channels with the same message that
/// answers an `SUNSUBSCRIBE`. The client takes this message for the answer to the oldest command
/// in flight, and then assigns all later answers to the wrong commands. So such a connection is
/// used only for listening, and is closed when this happens.
#[derive(Default)]
pub(super) struct Shards {
    /// The number of subscriptions that are being ended by us.
    leaving: AtomicUsize,
    cut_off: Notify,
    /// The server is too old for channels that belong to slots.
    unknown: AtomicBool,
}

/// A subscription, or the end of one, that has been sent.
pub(crate) struct Listen {
    answer: Pending,
    /// Its channel belongs to a slot.
    sharded: bool,
}

impl Shards {
    /// A subscription has ended.
    pub(super) fn ended(&self) {
        let expected = self
            .leaving
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                count.checked_sub(1)
            });
        if expected.is_err() {
            self.cut_off.notify_one();
        }
    }

    /// Waits until the server has ended a subscription by itself.
    pub(super) async fn cut_off(&self) {
        self.cut_off.notified().await;
    }
}

impl Connection {
    pub(super) fn new(
        multiplexed: MultiplexedConnection,
        address: Address,
        endpoint: Endpoint,
        token_floor: u64,
        settings: &Settings,
        time: Time,
        shards: Option<Arc<Shards>>,
    ) -> Self {
        let Settings { replicas, .. } = *settings;
        let wait = (replicas > 0).then(|| commands::wait(replicas, settings.wait_limit()));
        Self(Arc::new(Inner {
            address,
            endpoint,
            multiplexed,
            batcher: Batcher::new(wait),
            timer: Mutex::new(Timer::of_this_runtime()),
            token_floor,
            patience: settings.patience(),
            time,
            shards,
        }))
    }

    /// Sends one command, and a second one behind it if [`How`] says so. The answers may be
    /// errors of the server.
    pub(super) async fn run(
        &self,
        command: Cmd,
        how: How,
        sending: Sending,
    ) -> Result<[Value; 2], Lost> {
        let alone = match how {
            How::Take | How::Plain => self.alone(),
            How::WithTheNext | How::Confirmed => None,
        };
        let Some(mut alone) = alone else {
            let answer = self.0.batcher.put(command, how);
            return outlined(self.wait(answer, how, sending)).await;
        };
        let mut multiplexed = self.0.multiplexed.clone();
        if how == How::Plain {
            let answer = apart(async move { multiplexed.send_packed_command(&command).await });
            let answer = self.bound(alone.timer.as_mut(), sending, answer);
            return Ok([answer.await?, Value::Nil]);
        }
        let commands = commands::pipeline([command, commands::draw_tokens(&Keyspace::Server, 1)]);
        let answers = apart(async move {
            let count = commands.len();
            multiplexed.send_packed_commands(&commands, 0, count).await
        });
        let answers = self.bound(alone.timer.as_mut(), sending, answers);
        let answers = answers.await?;
        answers.try_into().map_err(|_| Lost::Broken(closed()))
    }

    /// Sends a command behind everything that was sent over this connection before, even if
    /// nobody waits for that any more. It works from any runtime, but no answer comes while the
    /// connection's own runtime stands still.
    pub(super) async fn run_behind(&self, command: Cmd) -> Result<Value, Lost> {
        let answer = self.0.batcher.put(command, How::Plain).await;
        match answer {
            Ok(answer) => answer.map(|[value, _]| value),
            Err(_) => Err(Lost::Broken(closed())),
        }
    }

    async fn wait(&self, answer: Pending, how: How, sending: Sending) -> Result<[Value; 2], Lost> {
        // A command that is sent at once is in a batch that gives up by then: one timer serves
        // all of its commands.
        let by_the_batch = sending.after(self.0.patience);
        let answer = if how != How::Confirmed && sending.deadline >= by_the_batch {
            answer.await
        } else {
            match self.0.time.bound(sending.deadline, answer).await {
                Ok(answer) => answer,
                Err(_) => return Err(Lost::TooLate),
            }
        };
        answer.unwrap_or_else(|_| Err(Lost::Broken(closed())))
    }

    /// Sends commands together. Returns as many answers as there were commands, each of which may
    /// be an error of the server.
    pub(super) async fn run_all(
        &self,
        commands: &Pipeline,
        sending: Sending,
    ) -> Result<Vec<Value>, Lost> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let mut multiplexed = self.0.multiplexed.clone();
        let answers = socket::send(&mut multiplexed, commands);
        let answers = self.bound(None, sending, answers).await?;
        if answers.len() == commands.len() {
            Ok(answers)
        } else {
            Err(Lost::Broken(closed()))
        }
    }

    /// Subscribes to these channels, or unsubscribes. There is one command for each, as they may
    /// be in different slots.
    pub(super) async fn subscribe(
        &self,
        channels: &[String],
        listens: bool,
        deadline: Deadline,
    ) -> Result<(), Lost> {
        let mut done = false;
        while !done {
            let asked = channels.iter().map(|it| self.listen(it, listens));
            done = true;
            for asked in asked.collect::<Vec<_>>() {
                done &= self.listened(asked, deadline).await?;
            }
        }
        Ok(())
    }

    /// Sends the command that subscribes to a channel, or unsubscribes, behind the earlier ones.
    pub(super) fn listen(&self, channel: &str, listens: bool) -> Listen {
        let shards = self.0.shards.as_ref();
        let shards = shards.filter(|shards| !shards.unknown.load(Ordering::Relaxed));
        if let Some(shards) = shards.filter(|_| !listens) {
            shards.leaving.fetch_add(1, Ordering::AcqRel);
        }
        self.send_listen(channel, shards.is_some(), listens)
    }

    /// Like [`listen`](Self::listen), for a channel that belongs to no slot.
    pub(super) fn listen_everywhere(&self, channel: &str, listens: bool) -> Listen {
        self.send_listen(channel, false, listens)
    }

    fn send_listen(&self, channel: &str, sharded: bool, listens: bool) -> Listen {
        let command = commands::listen(channel, sharded, listens);
        Listen {
            answer: self.0.batcher.put(command, How::Plain),
            sharded,
        }
    }

    /// Waits for the answer. `false`: the server is too old for channels that belong to slots,
    /// and the command must be sent again.
    pub(super) async fn listened(&self, asked: Listen, deadline: Deadline) -> Result<bool, Lost> {
        let answer = outlined(self.wait(asked.answer, How::Plain, Sending::now(deadline)));
        let [answer, _] = answer.await?;
        match (answer, &self.0.shards) {
            (Value::ServerError(error), Some(shards)) if asked.sharded && is_unknown(&error) => {
                shards.unknown.store(true, Ordering::Relaxed);
                Ok(false)
            }
            (Value::ServerError(error), _) => Err(Lost::Broken(error.into())),
            _ => Ok(true),
        }
    }

    /// Waits for an answer until the caller's deadline, or for as long as an answer may take.
    async fn bound<A>(
        &self,
        timer: Option<&mut Timer>,
        sending: Sending,
        answer: BoxFuture<'_, RedisResult<A>>,
    ) -> Result<A, Lost> {
        let Inner { patience, time, .. } = &*self.0;
        let patience = sending.after(*patience);
        let end = sending.deadline.min(patience);
        let answer = match timer {
            Some(timer) => timer.bound(time, sending.at, end, answer).await,
            None => time.bound(end, answer).await,
        };
        match answer {
            Ok(answer) => answer.map_err(Lost::Broken),
            Err(Elapsed) if sending.deadline < patience => Err(Lost::TooLate),
            Err(Elapsed) => Err(Lost::Silent),
        }
    }

    /// The right to send without the batcher, if nothing else is in flight. The batcher would
    /// then only add a wake-up of the connection's task, which on a multi-threaded runtime wakes
    /// another thread.
    fn alone(&self) -> Option<Alone<'_>> {
        // Commands that wait in the batcher must not be overtaken.
        if !self.0.batcher.is_empty() {
            return None;
        }
        let timer = self.0.timer.lock().take()?;
        Some(Alone {
            connection: self,
            timer: Some(timer),
        })
    }

    /// Reads and writes until the connection breaks or is discarded. Callers that still wait for
    /// an answer then learn that none will come, even if the runtime ends and drops this.
    pub(super) async fn drive(&self, mut driver: Driver) {
        let _closes = Closes(&self.0.batcher);
        let mut dispatcher = Dispatcher::new();
        let send = |batch| self.deliver(batch);
        poll_fn(|context| {
            loop {
                if dispatcher.send(&self.0.batcher, send, context).is_ready() {
                    return Poll::Ready(());
                }
                let is_over = driver.as_mut().poll(context).is_ready();
                // Answers may have come together with the end.
                let goes_on = dispatcher.deliver(context);
                if is_over {
                    return Poll::Ready(());
                }
                if !goes_on {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    async fn deliver(&self, batch: Batch) {
        // The only limit is the time that an answer may take. A caller with an earlier deadline
        // has a timer of its own.
        let sending = Sending::without_deadline();
        match self.run_all(batch.commands(), sending).await {
            Ok(answers) => {
                let mut deliveries = batch.answered(answers);
                while deliveries.by_ref().take(AT_A_TIME).count() == AT_A_TIME {
                    step_back().await;
                }
            }
            Err(lost) => {
                batch.fail(&lost);
                // The connection cannot be used any more. Callers with an earlier deadline may
                // not have noticed that.
                self.discard();
            }
        }
    }

    /// Whether the other is the same connection, and not a replacement of it.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The address of the server.
    pub(super) fn address(&self) -> &Address {
        &self.0.address
    }

    /// The server, as it is named in messages.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// All tokens that are drawn over this connection must be above this: the counter was here
    /// when the connection was opened.
    pub(super) fn token_floor(&self) -> u64 {
        self.0.token_floor
    }

    /// Closes the connection, which does not answer or leads to the wrong server.
    pub(super) fn discard(&self) {
        self.0.batcher.close();
    }

    pub(super) fn is_open(&self) -> bool {
        !self.0.batcher.is_closed()
    }
}

/// This many answers are delivered before the tasks that got them may run: their next commands
/// are then at the server while the others get their answers. If all were delivered at once,
/// client and server would wait for each other in turn.
const AT_A_TIME: usize = 16;

/// Lets other tasks of the runtime run that are ready.
async fn step_back() {
    let mut stepped = false;
    poll_fn(|context| {
        if std::mem::replace(&mut stepped, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Closes a batcher when its sending task has ended.
struct Closes<'a>(&'a Batcher);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The right to send without the batcher.
struct Alone<'a> {
    connection: &'a Connection,
    timer: Option<Timer>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        *self.connection.0.timer.lock() = self.timer.take();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use redis::{AsyncConnectionConfig, RedisConnectionInfo};
    use tokio::io::{AsyncReadExt, DuplexStream};

    use super::super::config::Config;
    use super::super::errors::Role;
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LATE: Duration = Duration::from_secs(60);

    /// A connection to a server that never answers.
    pub(crate) async fn silent(patience: Duration) -> (Connection, Driver, DuplexStream) {
        let (here, there) = tokio::io::duplex(1024);
        let login = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (multiplexed, driver) = MultiplexedConnection::new_with_config(&login, here, config)
            .await
            .expect("nothing to log in to");
        let time = Time::of_the_machine(tokio::runtime::Handle::current());
        let address = Address::at("nowhere", 1).expect("a port");
        let Config { mut settings, .. } = Config::read("redis://nowhere").expect("a valid URL");
        settings.request_timeout = patience.mul_f64(2.5);
        settings.replicas = 1;
        let endpoint = Endpoint::new(Role::Server, "redis", Keyspace::Server, None);
        (
            Connection::new(
                multiplexed,
                address,
                endpoint,
                0,
                &settings,
                time,
                Some(Arc::default()),
            ),
            Box::pin(driver),
            there,
        )
    }

    /// One command goes straight to the client, the others through the batcher.
    async fn ask_thrice(connection: &Connection, wait: Duration) -> [Result<[Value; 2], Lost>; 3] {
        let ask = || {
            let sending = Sending::now(Deadline::after(wait));
            connection.run(redis::cmd("PING"), How::Plain, sending)
        };
        tokio::join!(ask(), ask(), ask()).into()
    }

    #[tokio::test]
    async fn a_caller_in_a_hurry_does_not_condemn_a_connection() {
        for (patience, wait) in [(LATE, SOON), (SOON, LATE)] {
            let (connection, driver, _server) = silent(patience).await;
            let asking = async {
                for answer in ask_thrice(&connection, wait).await {
                    match answer {
                        Err(Lost::TooLate) => assert_eq!(wait, SOON),
                        Err(Lost::Silent) => assert_eq!(patience, SOON),
                        other => panic!("{other:?}"),
                    }
                }
                assert!(connection.is_open() || patience == SOON);
                connection.discard();
            };
            tokio::join!(asking, connection.drive(driver));
        }
    }

    /// Nothing is sent behind a `WAIT` that has not been answered yet.
    #[tokio::test]
    async fn what_is_held_back_has_its_own_time() {
        let (connection, _driver, _server) = silent(SOON).await;
        let sending = Sending::now(Deadline::after(2 * SOON));
        let asked = connection.run(redis::cmd("PING"), How::Confirmed, sending);
        let answer = tokio::time::timeout(LATE, asked).await;
        let answer = answer.expect("its time has passed");
        assert!(matches!(answer, Err(Lost::TooLate)), "{answer:?}");
    }

    /// The caller has left.
    #[tokio::test]
    async fn a_connection_that_leaves_a_batch_without_an_answer_is_closed() {
        for how in [How::WithTheNext, How::Confirmed] {
            let (connection, driver, _server) = silent(SOON).await;
            let context = &mut Context::from_waker(Waker::noop());
            let sending = Sending::now(Deadline::after(LATE));
            let mut asked = Box::pin(connection.run(redis::cmd("PING"), how, sending));
            assert!(asked.as_mut().poll(context).is_pending());
            let mut driving = pin!(connection.drive(driver));
            while !connection.0.batcher.is_empty() {
                assert!(driving.as_mut().poll(context).is_pending());
            }
            drop(asked);
            let driven = tokio::time::timeout(LATE, driving).await;
            driven.expect("it was closed");
            assert!(!connection.is_open());
        }
    }

    #[tokio::test]
    async fn what_waits_for_the_next_goes_alone_if_there_is_none() {
        let (connection, driver, mut server) = silent(LATE).await;
        let sending = Sending::now(Deadline::after(LATE));
        let command = redis::cmd("PING");
        let (packed, mut heard) = (command.get_packed_command(), Vec::new());
        // The caller's future is not polled again.
        let mut asked = pin!(connection.run(command, How::WithTheNext, sending));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(asked.as_mut().poll(context).is_pending());
        tokio::select! {
            () = connection.drive(driver) => panic!("it was closed"),
            _ = async {
                while heard.len() < packed.len() {
                    server.read_buf(&mut heard).await.expect("the command");
                }
            } => {}
        }
        assert_eq!(heard, packed);
    }

    #[tokio::test]
    async fn a_closed_connection_answers_nobody() {
        let (connection, driver, server) = silent(LATE).await;
        let (answers, ()) = tokio::join!(ask_thrice(&connection, LATE), async {
            let driving = connection.drive(driver);
            drop(server);
            driving.await;
        });
        for answer in answers {
            assert!(matches!(answer, Err(Lost::Broken(_))), "{answer:?}");
        }
        // A connection whose runtime has ended.
        let (connection, driver, _server) = silent(LATE).await;
        tokio::select! {
            biased;
            () = connection.drive(driver) => panic!("it was closed"),
            () = std::future::ready(()) => {}
        }
        let answer = connection.run_behind(redis::cmd("PING")).await;
        assert!(matches!(answer, Err(Lost::Broken(_))), "{answer:?}");
        // A connection that was discarded.
        let (connection, driver, _server) = silent(LATE).await;
        connection.discard();
        connection.drive(driver).await;
        let answer = connection.run_behind(redis::cmd("PING")).await;
        assert!(matches!(answer, Err(Lost::Broken(_))), "{answer:?}");
    }
}
