//! Memory for buffers, for users.

use crate::{Buffer, Comm, Element, Host, Result};

impl Comm<Host> {
    /// A buffer of so many elements, all zero, from where this communicator moves them best.
    ///
    /// Over shared memory, ranks of the host read what collectives send from such a buffer in place, if it has at least
    /// the size from which on that is faster than copying; the call then returns on the sending rank once the others
    /// have read. A smaller buffer, and one of a communicator over something else, is memory like any other. Any slice may be given to any call, and such a buffer to the calls of any
    /// communicator. No process but this one can write to it.
    ///
    /// Allocating takes as long as touching all of the memory, so buffers should be kept. They may be held longer than
    /// the communicator, and are given back when they are dropped, from any thread; what other ranks have read of one, by
    /// the system once these have slept in a later call.
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(4, |comm| {
    ///     let mut gradients = comm.alloc::<f32>(1 << 20).unwrap();
    ///     gradients.fill(comm.rank() as f32);
    ///     comm.all_reduce(&mut gradients, ReduceOp::Avg).unwrap();
    ///     assert!(gradients.iter().all(|&gradient| gradient == 1.5));
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is not so much memory; the communicator remains usable.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        Buffer::zeroed(self.communicator(), len)
    }
}
