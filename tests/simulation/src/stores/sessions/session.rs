//! The session of a process: begun, kept alive, gone on with over another connection,
//! and lost.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dlock_runtime::store::{Context, Deadline, Events, Failure, Scope, Time};

use super::server::{Answer, Command, SESSION, SessionServer, What};
use crate::network::Connection;
use crate::stores::client::{Config, not_reached, unknown};
use crate::world::Flag;

/// One answer may take so long, before another connection is made.
const PATIENCE: Duration = Duration::from_millis(800);
const BEAT: Duration = Duration::from_millis(1_000);
const AGAIN: Duration = Duration::from_millis(100);

pub(super) struct Keeper {
    config: Config<SessionServer>,
    time: Time,
    events: Events,
    state: Mutex<State>,
    attached: Flag,
    given_up: Flag,
}

#[derive(Default)]
struct State {
    session: Option<u64>,
    connection: Option<Arc<Connection<SessionServer>>>,
    ended: BTreeSet<u64>,
}

/// A session, and the connection that it is on.
pub(super) type Attached = (u64, Arc<Connection<SessionServer>>);

impl Keeper {
    pub(super) fn begin(config: Config<SessionServer>, context: &Context) -> Arc<Self> {
        let keeper = Arc::new(Self {
            config,
            time: context.time.clone(),
            events: context.events.clone(),
            state: Mutex::default(),
            attached: Flag::default(),
            given_up: Flag::default(),
        });
        let this = Arc::clone(&keeper);
        context.spawn(async move { this.keep().await });
        keeper
    }

    pub(super) fn has_ended(&self, session: u64) -> bool {
        self.state().ended.contains(&session)
    }

    /// The session and its connection, once there are both.
    pub(super) async fn attached(&self, deadline: Deadline) -> Result<Attached, Failure> {
        let attached = async {
            loop {
                self.attached.until_set().await;
                if let Some(attached) = self.now_attached() {
                    return attached;
                }
                // Its keeper sees it too.
                self.config.process.sleep(Duration::from_millis(5)).await;
            }
        };
        let attached = self.time.bound(deadline, attached).await;
        attached.map_err(|_| not_reached("there is no session"))
    }

    fn now_attached(&self) -> Option<Attached> {
        let state = self.state();
        let connection = state.connection.as_ref().filter(|known| known.is_open());
        state.session.zip(connection.cloned())
    }

    /// Asks in the session. What is on its way is in `flight`, until it is answered or
    /// given up.
    pub(super) async fn ask(
        &self,
        what: What,
        deadline: Deadline,
        flight: &mut Option<Attached>,
    ) -> Result<(Answer, Instant, u64), Failure> {
        let (session, connection) = self.attached(deadline).await?;
        let sent_at = self.time.now();
        *flight = Some((session, Arc::clone(&connection)));
        let limit = self.time.after(PATIENCE).min(deadline);
        let answer = connection.send(self.command(Some(session), &connection, what));
        let answer = self.time.bound(limit, answer).await;
        *flight = None;
        match answer {
            Ok(Ok(Answer::Refused { has_ended })) => {
                self.give_up(&connection);
                if has_ended {
                    self.ended(session);
                }
                Err(not_reached("its session has ended, or goes on elsewhere"))
            }
            Ok(Ok(answer)) => {
                self.events.answered(sent_at);
                Ok((answer, sent_at, session))
            }
            _ => {
                self.give_up(&connection);
                Err(unknown(sent_at))
            }
        }
    }

    /// The keeper goes on over another.
    fn give_up(&self, connection: &Arc<Connection<SessionServer>>) {
        connection.close();
        let known = self.state().connection.clone();
        if known.is_some_and(|known| Arc::ptr_eq(&known, connection)) {
            self.given_up.set(true);
        }
    }

    pub(super) fn command(
        &self,
        session: Option<u64>,
        connection: &Connection<SessionServer>,
        what: What,
    ) -> Command {
        Command {
            process: self.config.process.id,
            session,
            connection: connection.number(),
            what,
        }
    }

    fn ended(&self, session: u64) {
        let is_news = {
            let mut state = self.state();
            if state.session == Some(session) {
                state.session = None;
            }
            state.ended.insert(session)
        };
        if is_news {
            self.events.ended(Scope(session));
        }
    }

    async fn keep(&self) {
        let Config { server, process } = &self.config;
        loop {
            self.attached.set(false);
            process
                .sleep(Connection::handshake(server, process.id))
                .await;
            let Some(connection) = Connection::open(server, process.id) else {
                process.sleep(AGAIN).await;
                continue;
            };
            let mut pushed = connection.listen();
            let before = self.state().session;
            let attach = connection.send(self.command(before, &connection, What::Attach));
            match self.time.bound(self.time.after(PATIENCE), attach).await {
                Ok(Ok(Answer::Session(session))) => {
                    let mut state = self.state();
                    state.session = Some(session);
                    state.connection = Some(Arc::clone(&connection));
                    self.given_up.set(false);
                }
                Ok(Ok(Answer::Refused { .. })) => {
                    connection.close();
                    before.into_iter().for_each(|session| self.ended(session));
                    continue;
                }
                _ => {
                    connection.close();
                    process.sleep(AGAIN).await;
                    continue;
                }
            }
            self.attached.set(true);
            // What was told meanwhile was told to nobody.
            self.events.missed();
            let beats = async {
                while connection.is_open() {
                    process.sleep(BEAT).await;
                    let limit = self.time.after(PATIENCE);
                    if self.ask(What::Beat, limit, &mut None).await.is_err() {
                        return;
                    }
                }
            };
            let hears = async {
                while let Some(told) = pushed.recv().await {
                    self.events.freed(&told.key);
                }
            };
            tokio::select! {
                biased;
                () = hears => {}
                () = connection.until_broken() => {}
                () = self.given_up.until_set() => {}
                () = beats => {}
            }
            connection.close();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a session is sure of, from when its server was last asked.
pub(super) const SURE: Duration = SESSION;
