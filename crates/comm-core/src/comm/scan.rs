//! Prefix reductions as methods.

use super::collectives::separate;
use crate::{AsView, AsViewMut, Buffers, Call, Comm, Host, ReduceOp, Result};

/// Prefix reductions, which only communicators for host memory support: see [`Call::Scan`].
impl Comm<Host> {
    /// Combines the buffers of ranks 0 to `r` into the buffer of rank `r`, in place. All buffers
    /// have the same length.
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(4, |comm| {
    ///     let mut buffer = [comm.rank() as u32 + 1];
    ///     comm.scan(&mut buffer, ReduceOp::Sum).unwrap();
    ///     assert_eq!(buffer, [[1], [1 + 2], [1 + 2 + 3], [1 + 2 + 3 + 4]][comm.rank()]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the operator is [`ReduceOp::Avg`] or not
    /// defined on the element type; otherwise see [`Communicator`](crate::Communicator).
    pub fn scan(&self, buffer: &mut (impl AsViewMut + ?Sized), op: ReduceOp) -> Result<()> {
        self.run(Call::Scan { buffers: Buffers::InPlace(buffer.as_view_mut()?), op })
    }

    /// Combines `send` of ranks 0 to `r` into `recv` of rank `r`. All buffers have the same length.
    ///
    /// # Errors
    /// Same as [`Comm::scan`], and [`Error::Invalid`](crate::Error::Invalid) if lengths or types
    /// differ.
    pub fn scan_into<S: AsView + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<Element = S::Element> + ?Sized),
        op: ReduceOp,
    ) -> Result<()> {
        self.run(Call::Scan { buffers: separate(send, recv)?, op })
    }

    /// Combines the buffers of the ranks below `r` into the buffer of rank `r`, in place. Rank 0's
    /// buffer is left unchanged.
    ///
    /// # Errors
    /// Same as [`Comm::scan`].
    pub fn exscan(&self, buffer: &mut (impl AsViewMut + ?Sized), op: ReduceOp) -> Result<()> {
        self.run(Call::Exscan { buffers: Buffers::InPlace(buffer.as_view_mut()?), op })
    }

    /// Combines `send` of the ranks below `r` into `recv` of rank `r`. Rank 0's `recv` is left
    /// unchanged.
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(3, |comm| {
    ///     // The line at which each rank starts writing to a shared file.
    ///     let lines = [20_u64, 30, 40][comm.rank()];
    ///     let mut start = [0];
    ///     comm.exscan_into(&[lines], &mut start, ReduceOp::Sum).unwrap();
    ///     assert_eq!(start, [[0], [20], [50]][comm.rank()]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Comm::scan_into`].
    pub fn exscan_into<S: AsView + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<Element = S::Element> + ?Sized),
        op: ReduceOp,
    ) -> Result<()> {
        self.run(Call::Exscan { buffers: separate(send, recv)?, op })
    }
}
