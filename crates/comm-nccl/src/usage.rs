//! The last uses of a piece of memory, so that streams wait for each other only where they must.

use std::sync::Mutex;

use comm_core::Result;

use crate::health::Ticket;
use crate::stream::{Event, Stream};
use crate::sync::lock;

/// The kind of access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Work that used memory, by the point at which it is done.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub(crate) stream: Stream,
    pub(crate) done: Event,
    /// The call of a communicator that it was, if it was one.
    pub(crate) ticket: Option<Ticket>,
}

impl Use {
    /// All that was enqueued on a stream so far.
    pub(crate) fn until_now(stream: &Stream) -> Result<Self> {
        Ok(Self { stream: stream.clone(), done: stream.record()?, ticket: None })
    }
}

/// The last uses of one allocation. Parts of it are not told apart: work on disjoint parts waits
/// for each other too.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    write: Option<Use>,
    /// Since that write, the last one of each stream.
    reads: Vec<Use>,
}

impl Usage {
    /// Makes a stream wait for what `access` must come after.
    pub(crate) fn before(&self, stream: &Stream, access: Access) -> Result<()> {
        let last = lock(&self.last);
        let reads = last.reads.iter().filter(|_| access == Access::Write);
        last.write
            .iter()
            .chain(reads)
            .filter(|past| !past.stream.is(stream))
            .try_for_each(|past| stream.wait(&past.done))
    }

    /// Keeps a use, for later ones to wait for.
    pub(crate) fn after(&self, access: Access, now: Use) {
        let mut last = lock(&self.last);
        last.reads.retain(|past| access == Access::Read && !past.stream.is(&now.stream));
        match access {
            Access::Read => last.reads.push(now),
            Access::Write => last.write = Some(now),
        }
    }

    /// Fails if the last write was a call that was lost. It must have ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.ticket().map_or(Ok(()), |ticket| ticket.check())
    }

    /// The call that wrote last, if a call did.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        lock(&self.last).write.as_ref().and_then(|write| write.ticket.clone())
    }
}
