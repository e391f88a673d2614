//! What a watch stream says.

use std::collections::HashSet;

use etcd_client::{KeyValue, ResponseHeader, WatchResponse};

/// A message of the stream.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) id: i64,
    /// The store's at the time.
    revision: i64,
    created: bool,
    canceled: bool,
    /// When the key was last deleted, of the deletions that it tells of.
    deleted: Option<i64>,
}

/// What a message means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Nothing,
    /// From now on the watch tells of what is after this revision.
    Since(i64),
    /// The key was deleted at this revision.
    Deleted(i64),
    /// The server does not watch any more, or not at all.
    Refused,
}

impl Message {
    pub(super) fn of(message: &WatchResponse) -> Self {
        // They are deletions, as no others are asked for.
        let events = message.events().iter();
        let deletions = events.map(|event| event.kv().map_or(i64::MAX, KeyValue::mod_revision));
        Self {
            id: message.watch_id(),
            revision: message.header().map_or(0, ResponseHeader::revision),
            created: message.created(),
            canceled: message.canceled(),
            deleted: deletions.max(),
        }
    }

    /// `on_server` has the watches that the server has of us.
    pub(super) fn meaning(self, on_server: &mut HashSet<i64>) -> Meaning {
        // Servers that are newer than 3.4 give a watch that they do not make the id
        // -1 (`recvLoop` in `server/etcdserver/api/v3rpc/watch.go`).
        if self.canceled && (on_server.remove(&self.id) || self.created) {
            Meaning::Refused
        } else if let Some(deleted) = self.deleted {
            Meaning::Deleted(deleted)
        } else if self.created {
            // Servers read it when they have made the watch; older ones (3.6.1,
            // 3.5.21) before, and have the watch begin behind it. So it misses
            // nothing that is later (the same `recvLoop`).
            Meaning::Since(self.revision)
        } else {
            Meaning::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WATCHED: i64 = 7;

    fn meaning(message: Message) -> (Meaning, bool) {
        let mut on_server = HashSet::from([WATCHED]);
        let meaning = message.meaning(&mut on_server);
        (meaning, on_server.contains(&WATCHED))
    }

    const MADE: Message = Message {
        id: WATCHED,
        revision: 12,
        created: true,
        canceled: false,
        deleted: None,
    };

    #[test]
    fn a_watch_that_was_refused_is_known_by_any_version() {
        let refused = Message {
            canceled: true,
            ..MADE
        };
        // 3.4, and a watch that is ended later.
        assert_eq!(meaning(refused), (Meaning::Refused, false));
        let ended = Message {
            created: false,
            ..refused
        };
        assert_eq!(meaning(ended), (Meaning::Refused, false));
        // Newer servers.
        let nobodys = Message { id: -1, ..refused };
        assert_eq!(meaning(nobodys), (Meaning::Refused, true));
    }

    #[test]
    fn other_messages_are_no_refusals() {
        assert_eq!(meaning(MADE), (Meaning::Since(12), true));
        let progress = Message {
            created: false,
            ..MADE
        };
        assert_eq!(meaning(progress), (Meaning::Nothing, true));
        let event = Message {
            deleted: Some(11),
            ..progress
        };
        assert_eq!(meaning(event), (Meaning::Deleted(11), true));
        // One that we have cancelled ourselves.
        let cancelled = Message {
            id: WATCHED + 1,
            canceled: true,
            ..progress
        };
        assert_eq!(meaning(cancelled), (Meaning::Nothing, true));
    }
}
