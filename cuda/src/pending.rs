//! Unfinished work that uses an array, as events: what must be waited for before the array is read, written or freed.

use std::sync::Arc;

use crate::error::Result;
use crate::stream::{DeviceEvent, Stream};

/// The events of work that still uses memory.
#[derive(Debug, Default)]
pub(crate) struct Pending(Vec<Arc<DeviceEvent>>);

/// How much unfinished work of one array is told apart. What comes then waits for the oldest.
const MOST_PENDING: usize = 64;

impl Pending {
    /// Adds what the stream has enqueued so far, and returns its event. Waits for the oldest work if there is too much.
    pub(crate) fn add(&mut self, stream: &Stream) -> Result<Arc<DeviceEvent>> {
        let event = Arc::new(DeviceEvent::recorded(stream)?);
        self.0.push(Arc::clone(&event));
        // Failures are those of other work, which code that waits for it is told.
        let _ = self.forget_complete();
        if let Some(oldest) = self.0.first().filter(|_| self.0.len() > MOST_PENDING) {
            let _ = oldest.synchronize();
        }
        Ok(event)
    }

    /// Drops the events of work that is done. Returns whether none is left.
    pub(crate) fn forget_complete(&mut self) -> Result<bool> {
        let mut failed = Ok(());
        self.0.retain(|event| match event.is_complete() {
            Ok(complete) => !complete,
            Err(error) => {
                failed = Err(error);
                true
            }
        });
        failed.map(|()| self.0.is_empty())
    }

    /// Returns the events of work that is not done yet. They can be waited for without a lock on this list.
    pub(crate) fn unfinished(&mut self) -> Result<Unfinished> {
        self.forget_complete()?;
        Ok(Unfinished(self.0.clone()))
    }

    /// Returns all events, also of work that is done by now.
    pub(crate) fn events(&self) -> Unfinished {
        Unfinished(self.0.clone())
    }

    /// Waits for the work, by another way if one fails. If all fail,
    /// [`may_still_run`](crate::context::may_still_run) returns true from then on.
    pub(crate) fn settle(&self) {
        self.events().settle();
    }
}

/// Events of work that may not be done yet.
#[derive(Default)]
pub(crate) struct Unfinished(Vec<Arc<DeviceEvent>>);

impl Unfinished {
    pub(crate) fn concat<const N: usize>(all: [Self; N]) -> Self {
        Self(all.into_iter().flat_map(|events| events.0).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether all of it is done.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        self.0.iter().try_fold(true, |all, event| Ok(event.is_complete()? && all))
    }

    /// Waits for all of it, as [`Pending::settle`].
    pub(crate) fn settle(&self) {
        self.0.iter().for_each(|event| event.settle());
    }

    /// Lets a stream wait for all of it.
    pub(crate) fn wait_on(&self, stream: &Stream) -> Result<()> {
        self.0.iter().try_for_each(|event| stream.wait(event))
    }

    /// Waits for all of it, also if some of it has failed.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.0.iter().map(|event| event.synchronize()).fold(Ok(()), Result::and)
    }
}
