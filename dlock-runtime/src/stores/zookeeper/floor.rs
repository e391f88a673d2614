//! The floor of the tokens: a node in the root. It is read together with the lock's folder, which
//! shows whose turn it is.
//!
//! Tokens are numbers of transactions, which nobody can raise. So the floor is added to them.
//! Folder and floor are read by one question, as they were at one moment. The next holder reads
//! them as they are later, when the node of the holder before it is gone: it sees the same floor,
//! or a higher one.

use std::time::Instant;

use futures_util::future::join;
use zookeeper_client::{Client, CreateMode, Error, MultiReadResult};

use super::ensemble::Ensemble;
use super::names;
use super::session::Session;
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::key::Shown;
use crate::store::Failure;
use crate::stores::meaning;

/// The nodes of a folder, and the floor at that moment.
pub(super) struct Queue {
    pub(super) names: Vec<String>,
    pub(super) floor: Result<u64, BackendError>,
}

/// The path of the floor, under this root.
pub(super) fn path(root: &str) -> String {
    names::join(root, names::FLOOR)
}

/// Reads the content of the node at that path.
pub(super) fn read(place: &str, path: &str, data: &[u8]) -> Result<u64, BackendError> {
    let number = std::str::from_utf8(data).ok();
    number.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let path = Shown(path);
        meaning::foreign(
            place,
            format_args!(
                "{path} holds a value that dlock did not write; it is the floor of its tokens: set \
                 it to the highest token that was given out"
            ),
        )
    })
}

/// Asks for the nodes of a folder, and the floor. A folder that does not exist is empty.
pub(super) async fn list(
    client: &Client,
    place: &str,
    folder: &str,
    floor: &str,
) -> Result<Queue, Error> {
    let answers = {
        let mut question = client.new_multi_reader();
        question.add_get_children(folder)?;
        question.add_get_data(floor)?;
        question.commit()
    };
    let mut queue = Queue {
        names: Vec::new(),
        floor: Ok(0),
    };
    for answer in answers.await? {
        match answer {
            MultiReadResult::Children { children } => queue.names = children,
            MultiReadResult::Data { data, .. } => queue.floor = read(place, floor, &data),
            MultiReadResult::Error { err } if err != Error::NoNode => return Err(err),
            // There is no such node.
            _ => {}
        }
    }
    Ok(queue)
}

impl Session {
    /// The nodes of a folder and the floor, and when that was asked.
    pub(super) async fn queue(
        &self,
        folder: &str,
        floor: &str,
        deadline: Deadline,
    ) -> Result<(Queue, Instant), Failure> {
        let asked = self.ask(folder, deadline, |client| {
            list(client, &self.place, folder, floor)
        });
        let (queue, sent_at) = asked.await?;
        let queue = queue.unwrap_or(Queue {
            names: Vec::new(),
            floor: Ok(0),
        });
        Ok((queue, sent_at))
    }
}

impl Ensemble {
    pub(super) fn floor(&self) -> String {
        path(&self.settings.root)
    }

    /// Raises the floor, unless it is as high already.
    pub(super) async fn raise_floor(&self, floor: u64, deadline: Deadline) -> Result<(), Failure> {
        let session = self.session(deadline).await?;
        let (path, text) = (self.floor(), floor.to_string());
        let acls = self.settings.acls();
        loop {
            let looked = session.ask(&path, deadline, |client| {
                // Both are sent at once, and the server runs them in this order.
                let (synced, found) = (client.sync(&path), client.get_data(&path));
                async {
                    let (synced, found) = join(synced, found).await;
                    synced?;
                    found
                }
            });
            let written = match looked.await?.0 {
                Some((data, _))
                    if read(&session.place, &path, &data).map_err(Failure::refused)? >= floor =>
                {
                    return Ok(());
                }
                Some((_, stat)) => {
                    let written = session.ask(&path, deadline, |client| async {
                        let set = client.set_data(&path, text.as_bytes(), Some(stat.version));
                        raised(set.await.map(drop))
                    });
                    written.await?.0
                }
                None => {
                    let root = &self.settings.root;
                    let options = CreateMode::Container.with_acls(acls);
                    let made = session.ask(root, deadline, |client| client.mkdir(root, &options));
                    made.await?;
                    let options = CreateMode::Persistent.with_acls(acls);
                    let written = session.ask(&path, deadline, |client| async {
                        raised(
                            client
                                .create(&path, text.as_bytes(), &options)
                                .await
                                .map(drop),
                        )
                    });
                    written.await?.0
                }
            };
            if written == Some(true) {
                return Ok(());
            }
        }
    }
}

/// `false`: another process has written the node first.
fn raised(written: Result<(), Error>) -> Result<bool, Error> {
    match written {
        Ok(()) => Ok(true),
        Err(Error::NodeExists | Error::BadVersion) => Ok(false),
        Err(error) => Err(error),
    }
}
