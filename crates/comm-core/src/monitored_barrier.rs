//! A barrier that tells who did not come.

use std::time::Duration;

use crate::{Comm, Host, Result};

impl Comm<Host> {
    /// A barrier that names exactly the ranks that did not arrive within `timeout`, on every rank that did.
    ///
    /// Rank 0 hears from every rank itself, so this costs rank 0 two messages per rank: it is for debugging, and for
    /// the start of a program. The timeout replaces that of the handle, and the algorithm is `star` whatever the handle
    /// says; every rank makes the call as a monitored barrier, as ranks in a plain [`Comm::barrier`] are in another
    /// call. It cannot tell a rank that died from a rank that is late sooner than other calls: a death that shows is
    /// [`Error::PeerLost`](crate::Error::PeerLost).
    ///
    /// ```no_run
    /// # fn example(comm: comm_core::Comm) -> comm_core::Result<()> {
    /// use std::time::Duration;
    ///
    /// use comm_core::Error;
    ///
    /// match comm.monitored_barrier(Duration::from_secs(30)) {
    ///     Err(Error::Timeout { waiting_for, .. }) => eprintln!("these ranks are stuck: {waiting_for:?}"),
    ///     other => other?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) with the ranks that did not arrive, of which a rank that learns of
    /// them from another knows the first 64; it comes a fraction of a second after the deadline, as ranks that have not
    /// been heard of are asked before they are named. Otherwise as written at [`Communicator`](crate::Communicator).
    /// All of these are fatal to the communicator.
    pub fn monitored_barrier(&self, timeout: Duration) -> Result<()> {
        self.with_timeout(timeout).with_algorithm("star").barrier()
    }
}
