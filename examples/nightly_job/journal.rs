//! What the job has done: one line for each beginning and each end of it. The
//! journal keeps nobody off; that is for the lock.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::AnyError;
use crate::arguments::Arguments;

pub(crate) struct Journal {
    job: String,
    place: Place,
}

enum Place {
    Memory(Mutex<Vec<String>>),
    #[cfg(feature = "redis")]
    Redis(redis::aio::MultiplexedConnection),
}

impl Journal {
    pub(crate) async fn open(arguments: &Arguments) -> Result<Self, AnyError> {
        let place = match &arguments.store {
            None => Place::Memory(Mutex::default()),
            #[cfg(feature = "redis")]
            Some(url) if url.starts_with("redis") => {
                let client = redis::Client::open(url.as_str())?;
                // The client's own half a second is over at once for a process that was
                // stopped in the middle of a command, and its second for a connection on a busy
                // machine.
                let config = redis::AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(std::time::Duration::from_secs(30)))
                    .set_response_timeout(None);
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                Place::Redis(connection.await?)
            }
            Some(_) => {
                return Err("this job keeps its journal in memory: or on redis:// only".into());
            }
        };
        let job = arguments.job.clone();
        Ok(Self { job, place })
    }

    pub(crate) fn job(&self) -> &str {
        &self.job
    }

    /// How often it was begun before.
    pub(crate) async fn begin(&self, tick: u64, copy: &str) -> Result<usize, AnyError> {
        let begun = format!("{tick} begun by ");
        let lines = self.lines().await?;
        self.write(format!("{begun}{copy}")).await?;
        Ok(lines.iter().filter(|line| line.starts_with(&begun)).count())
    }

    pub(crate) async fn done(&self, tick: u64, copy: &str) -> Result<(), AnyError> {
        self.write(format!("{tick} done by {copy}")).await
    }

    /// Whatever else may go wrong, this must be empty.
    pub(crate) async fn ticks_done_twice(&self) -> Result<Vec<u64>, AnyError> {
        let mut done = BTreeMap::<u64, u32>::new();
        for line in self.lines().await? {
            if let Some((tick, _)) = line.split_once(" done by ") {
                *done.entry(tick.parse()?).or_default() += 1;
            }
        }
        let twice = done.into_iter().filter(|(_, times)| *times > 1);
        Ok(twice.map(|(tick, _)| tick).collect())
    }

    async fn write(&self, line: String) -> Result<(), AnyError> {
        match &self.place {
            Place::Memory(lines) => {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                lines.push(line);
            }
            #[cfg(feature = "redis")]
            Place::Redis(connection) => {
                redis::pipe()
                    .rpush(self.key(), line)
                    .expire(self.key(), 3600)
                    .exec_async(&mut connection.clone())
                    .await?;
            }
        }
        Ok(())
    }

    async fn lines(&self) -> Result<Vec<String>, AnyError> {
        match &self.place {
            Place::Memory(lines) => {
                let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(lines.clone())
            }
            #[cfg(feature = "redis")]
            Place::Redis(connection) => {
                use redis::AsyncCommands as _;
                Ok(connection.clone().lrange(self.key(), 0, -1).await?)
            }
        }
    }

    #[cfg(feature = "redis")]
    fn key(&self) -> String {
        format!("journal:{}", self.job)
    }
}
