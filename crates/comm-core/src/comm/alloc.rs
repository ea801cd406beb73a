//! Allocation of buffers.

use crate::{Buffer, Comm, Element, Host, Result};

impl Comm<Host> {
    /// Allocates a buffer of `len` elements, all zero, where this communicator moves them fastest.
    ///
    /// With shared memory, other ranks of the host read the data that is sent from such a buffer in
    /// place, if it is large enough for this to be faster than copying. The call then returns on
    /// the sending rank once the others have read the data. They write to the buffer
    /// only in an all-reduce of it, and if that fails, no longer when it returns. A smaller buffer,
    /// one of a communicator over another transport, or one for which the limits of the process
    /// allow no file, is ordinary memory. Calls still accept any slice, and buffers of any
    /// communicator.
    ///
    /// Allocation takes as long as touching all of the memory, so reuse buffers. They may outlive
    /// the communicator, and may be dropped on any thread, which frees them; pages that other ranks
    /// have mapped are freed once those ranks have slept in a later call.
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
