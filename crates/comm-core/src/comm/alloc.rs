//! Allocation of buffers.

use crate::{Buffer, Comm, Element, Host, Result};

impl Comm<Host> {
    /// Allocates a buffer of `len` elements, all zero, where this communicator moves them fastest.
    ///
    /// Over shared memory, ranks of the host read the data that collectives send from such a buffer
    /// in place, from the size on at which that is faster than copying; the call then returns on
    /// the sending rank once the others have read. A smaller buffer, and one of a communicator over
    /// another transport, is ordinary memory. Any call accepts any slice, and a buffer of any
    /// communicator. No other process can write to it.
    ///
    /// Allocating takes as long as touching all of the memory, so keep buffers. They may outlive
    /// the communicator, and are freed when they are dropped, from any thread; the system frees
    /// pages that other ranks have mapped once these ranks have slept in a later call.
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
    /// [`Error::Io`](crate::Error::Io) if there is not enough memory; the communicator remains
    /// usable.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        Buffer::zeroed(self.communicator(), len)
    }
}
