//! The last uses of memory, so that streams wait for each other only if they must.

use std::sync::Mutex;

use comm_core::Result;

use crate::health::CallRecord;
use crate::stream::{Event, Stream};
use crate::sync::lock;

/// The kind of access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A use of memory, by the event of its completion.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub(crate) stream: Stream,
    pub(crate) done: Event,
    /// The call of a communicator that made the use, if it was one.
    pub(crate) call_record: Option<CallRecord>,
}

impl Use {
    /// Returns the use of all work that was enqueued on a stream so far.
    pub(crate) fn until_now(stream: &Stream) -> Result<Self> {
        Ok(Self { stream: stream.clone(), done: stream.record()?, call_record: None })
    }
}

/// The last uses of one allocation. Its parts are not distinguished: uses of disjoint parts wait
/// for each other.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    write: Option<Use>,
    /// The last read of each stream since that write.
    reads: Vec<Use>,
}

impl Usage {
    /// Makes a stream wait for the uses that conflict with `access`.
    pub(crate) fn before(&self, stream: &Stream, access: Access) -> Result<()> {
        let last = lock(&self.last);
        let reads = last.reads.iter().filter(|_| access == Access::Write);
        last.write
            .iter()
            .chain(reads)
            .filter(|past| !past.stream.is(stream))
            .try_for_each(|past| stream.wait(&past.done))
    }

    /// Records a use, so that later ones wait for it.
    pub(crate) fn after(&self, access: Access, now: Use) {
        let mut last = lock(&self.last);
        last.reads.retain(|past| access == Access::Read && !past.stream.is(&now.stream));
        match access {
            Access::Read => last.reads.push(now),
            Access::Write => last.write = Some(now),
        }
    }

    /// Returns an error if the call that made the last write was lost. The call must have ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.call_record().map_or(Ok(()), |call_record| call_record.check())
    }

    /// Returns the call that made the last write, if it was a call.
    pub(crate) fn call_record(&self) -> Option<CallRecord> {
        lock(&self.last).write.as_ref().and_then(|write| write.call_record.clone())
    }
}
