//! Keeping a lock, giving it back, and looking at it.

use std::sync::Arc;
use std::time::Duration;

use super::Running;
use super::call::{Call, attempts};
use super::lease_table::LeaseTable;
use crate::backend::{BackendError, LockInfo, Released, Renewed, Request};
use crate::deadline::Deadline;
use crate::store::{Abandoned, Applied, Cause, Due, Ending, Failure, LeftBehind, Next, Store};

impl<S: Store> Running<S> {
    pub(crate) async fn release(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Released, BackendError> {
        if S::CLAIM.is_some() {
            // Before it is sent: what is granted to this owner from now on is not its
            // own.
            self.events.holders().remove(request.owner);
        }
        let (record, mut repeated) = if LeaseTable::<S::Record>::KEEPS {
            let by = self.time.after(self.request_timeout);
            let entry = self.table.give_back(request.owner, by.at());
            match entry.or_else(|| Some((S::forgotten()?, false))) {
                Some((record, before)) => (Some(record), before),
                None => return Ok(Released::NotHeld),
            }
        } else {
            (None, false)
        };
        let mut call = Call::new(self);
        let freed = loop {
            let deadline = call.begin()?;
            let (proof, attempt) = (record.as_ref(), &mut call.attempt);
            let releasing = self
                .store
                .release(request, proof, Ending::Released, deadline, attempt);
            match releasing.await {
                Ok(freed) => break freed,
                Err(failure) => {
                    repeated |= may_have_been_done(&failure);
                    call.failed(failure).await?;
                }
            }
        };
        if LeaseTable::<S::Record>::KEEPS {
            self.table.remove(request.owner);
        }
        if let Some(unknown) = self.unknown.take(request.owner, || self.time.now()) {
            let left = LeftBehind::unknown(Some(unknown));
            self.clean_up(request.clone(), Abandoned::at_rest(record), &left);
        }
        Ok(freed.told(repeated))
    }

    /// Ends the leases that the store does not, when their time has passed: until
    /// the engine is told to stop.
    pub(super) async fn end_leases(self: Arc<Self>) {
        while !self.stopping.is_cancelled() {
            let (over, next) = self.table.take_due(self.time.now());
            for (request, record) in over {
                self.end(request, record);
            }
            let due = async {
                match next {
                    Some(next) => self.time.sleep(Deadline::from(next, Duration::ZERO)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.stopping.cancelled() => {}
                () = self.table.sooner() => {}
                () = due => {}
            }
        }
    }

    pub(crate) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let shortest = requests.iter().map(|request| request.ttl).min();
        let limit = self
            .store
            .renews_within(self.request_timeout, shortest.unwrap_or_default());
        self.renew_within(requests, limit).await
    }

    /// All of them have one time limit.
    pub(super) async fn renew_within(
        &self,
        requests: &[Request],
        limit: Duration,
    ) -> Vec<Result<Renewed, BackendError>> {
        let mut answers: Vec<Option<Result<Renewed, BackendError>>> = Vec::new();
        answers.resize_with(requests.len(), || None);
        let mut call = Call::of_at_most(self, limit);
        let error = loop {
            let (indexes, mut due) = self.unanswered(requests, &mut answers);
            if due.is_empty() {
                break None;
            }
            let deadline = match call.begin() {
                Ok(deadline) => deadline,
                Err(error) => break Some(error),
            };
            let renewing = self.store.renew(&mut due, deadline, &mut call.attempt);
            let renewed = renewing.await;
            let (now, mut again) = (self.time.now(), None);
            let mut renewed = renewed.into_iter();
            for (index, due) in indexes.into_iter().zip(due) {
                let answer = renewed.next().unwrap_or_else(|| Err(Failure::not_sent()));
                if let Some(record) = due.record {
                    self.table.update(&requests[index], record, now);
                }
                match answer {
                    Ok(renewed) => {
                        answers[index] = Some(Ok(self.extended(&requests[index], renewed)))
                    }
                    // It concerns this one, and not those beside it.
                    Err(Failure {
                        cause: Cause::Error(error),
                        next: Next::Stop,
                        ..
                    }) => answers[index] = Some(Err(error)),
                    Err(failure) => again = Some(failure),
                }
            }
            if let Some(failure) = again
                && let Err(error) = call.failed(failure).await
            {
                break Some(error);
            }
        };
        let failed = |answer| match (answer, &error) {
            (Some(answer), _) => answer,
            (None, Some(error)) => Err(error.clone()),
            (None, None) => unreachable!("each has an answer, or there is an error"),
        };
        answers.into_iter().map(failed).collect()
    }

    /// A lease that this process ends may have ended meanwhile.
    fn extended(&self, request: &Request, renewed: Renewed) -> Renewed {
        match renewed {
            Renewed::Extended { sent_at } if !S::EXPIRES => {
                let due = Deadline::from(sent_at.into_std(), request.ttl);
                if self.table.extend(request.owner, due.at()) {
                    renewed
                } else {
                    Renewed::Gone
                }
            }
            _ => renewed,
        }
    }

    /// Those that have no answer yet, each with its place among `requests`.
    fn unanswered(
        &self,
        requests: &[Request],
        answers: &mut [Option<Result<Renewed, BackendError>>],
    ) -> (Vec<usize>, Vec<Due<S>>) {
        let (mut indexes, mut due) = (Vec::new(), Vec::new());
        for (index, request) in requests.iter().enumerate() {
            if answers[index].is_some() {
                continue;
            }
            let mut record = None;
            if LeaseTable::<S::Record>::KEEPS {
                record = self.table.record(request.owner).or_else(S::forgotten);
                if record.is_none() {
                    answers[index] = Some(Ok(Renewed::Gone));
                    continue;
                }
            }
            indexes.push(index);
            due.push(Due {
                request: request.clone(),
                record,
            });
        }
        (indexes, due)
    }

    pub(crate) async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        let mut call = Call::new(self);
        attempts!(call, |deadline, attempt| self
            .store
            .inspect(key, deadline, attempt))
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        let mut call = Call::new(self);
        loop {
            let part = attempts!(call, |deadline, attempt| self
                .store
                .list(prefix, deadline, attempt));
            match part? {
                Some(found) => return Ok(found),
                None => call.start_again(),
            }
        }
    }
}

fn may_have_been_done(failure: &Failure) -> bool {
    matches!(failure.applied, Applied::OnItsWay | Applied::Unknown { .. })
}
