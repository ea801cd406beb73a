//! A barrier that names the ranks that did not arrive.

use std::time::Duration;

use crate::{Call, Comm, Host, Result};

impl Comm<Host> {
    /// Waits for all ranks, and names exactly those that did not arrive within `timeout`, on every
    /// rank that did.
    ///
    /// Rank 0 exchanges two messages with every other rank, so this is for debugging and for the
    /// start of a program. `timeout` replaces the timeout of the handle, and the algorithm of the
    /// handle is ignored. The timeout may differ between ranks; the first one to expire ends the
    /// barrier on all of them. [`Comm::barrier`] is a different call, and does not match this one.
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
    ///             other => panic!("rank 1 did not arrive, but the barrier returned {other:?}"),
    ///         }
    ///     }
    ///     comm
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) with the ranks that did not arrive; if another
    /// rank reported them, only the first 64. Ranks from which nothing has arrived are queried
    /// before they are named, so the error may come up to 200 ms after the deadline, but no later
    /// than a quarter of the timeout after it. Otherwise see [`Communicator`](crate::Communicator).
    /// All of these are fatal to the communicator.
    pub fn monitored_barrier(&self, timeout: Duration) -> Result<()> {
        self.with_timeout(timeout).run(Call::MonitoredBarrier)
    }
}
