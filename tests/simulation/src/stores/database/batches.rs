//! Locks that are taken at the same time are taken together: who comes while one of these
//! commands is on its way gathers, and all who have gathered go with the next.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_runtime::store::Failure;
use tokio::sync::oneshot;

use super::server::{Asked, Took};

/// So many go together at most.
const MOST: usize = 4;

/// What has come of it, and when it was sent.
pub(super) type Came = Result<(Took, std::time::Instant), Failure>;

#[derive(Default)]
pub(super) struct Batches {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    gathered: Vec<Member>,
    /// One is on its way.
    goes: bool,
}

pub(super) struct Member {
    pub(super) asked: Asked,
    pub(super) tell: oneshot::Sender<Came>,
}

impl Batches {
    /// Whether nobody is at it, so that who has joined is to send it.
    pub(super) fn join(&self, member: Member) -> bool {
        let mut state = self.state();
        state.gathered.push(member);
        !std::mem::replace(&mut state.goes, true)
    }

    /// Who goes next; nobody, if none has gathered. Two of one lock do not go together.
    pub(super) fn next(&self) -> Vec<Member> {
        let mut state = self.state();
        let (mut goes, mut stays): (Vec<Member>, Vec<Member>) = Default::default();
        for member in take(&mut state.gathered) {
            // Who has left is not sent.
            if member.tell.is_closed() {
                continue;
            }
            let is_there = goes.iter().any(|other| other.asked.key == member.asked.key);
            match is_there || goes.len() == MOST {
                true => stays.push(member),
                false => goes.push(member),
            }
        }
        state.gathered = stays;
        state.goes = !goes.is_empty();
        goes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What it came to is told to each.
pub(super) fn tell(members: Vec<Member>, came: Result<(Vec<Took>, std::time::Instant), Failure>) {
    match came {
        Ok((took, sent_at)) => {
            for (member, took) in members.into_iter().zip(took) {
                // It may have left.
                let _ = member.tell.send(Ok((took, sent_at)));
            }
        }
        Err(failure) => {
            for member in members {
                let _ = member.tell.send(Err(failure.clone()));
            }
        }
    }
}

/// Shared by what sends for a process.
pub(super) type Gathering = Arc<Batches>;
