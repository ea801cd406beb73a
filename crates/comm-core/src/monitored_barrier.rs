//! A barrier that names the ranks that did not arrive.

use std::time::Duration;

use crate::{Call, Comm, Host, Result};

impl Comm<Host> {
    /// Waits for all ranks, and names exactly those that did not arrive within `timeout`, on every
    /// rank that did.
    ///
    /// Rank 0 receives a message from every rank, at the cost of two messages per rank, so this is
    /// for debugging and for the start of a program. The timeout takes the place of the handle's,
    /// whose algorithm does not matter. The timeout may differ from rank to rank; whichever passes
    /// first ends the barrier on all of them. Ranks that call [`Comm::barrier`] instead are in
    /// another call.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use comm::Error;
    ///
    /// let comms = comm::threads::run(3, |comm| {
    ///     // Rank 1 is stuck elsewhere.
    ///     if comm.rank() != 1 {
    ///         match comm.monitored_barrier(Duration::from_secs(2)) {
    ///             Err(Error::Timeout { waiting_for, .. }) => assert_eq!(waiting_for, [1]),
    ///             other => panic!("rank 1 did not come, but the barrier returned {other:?}"),
    ///         }
    ///     }
    ///     comm
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) with the ranks that did not arrive; a rank that
    /// learns of them from another knows the first 64. Ranks from which nothing has arrived are
    /// asked before they are named, so it comes up to 200 ms after the deadline, but no more than a
    /// quarter of the timeout. Otherwise as written at [`Communicator`](crate::Communicator). All
    /// of these are fatal to the communicator.
    pub fn monitored_barrier(&self, timeout: Duration) -> Result<()> {
        self.with_timeout(timeout).run(Call::MonitoredBarrier)
    }
}
