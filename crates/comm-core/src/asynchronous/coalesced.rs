//! Collectives of many buffers that run in the background.

use crate::{Comm, Element, Host, ReduceOp, Result, Work};

/// See [`Comm::all_reduce_async`] for the rules that all background calls share.
impl Comm<Host> {
    /// Runs [`Comm::all_reduce_coalesced`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system cannot start a thread.
    pub fn all_reduce_coalesced_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        buffers: Vec<B>,
        op: ReduceOp,
    ) -> Result<Work<Vec<B>>> {
        self.in_background(buffers, move |comm, buffers| comm.all_reduce_coalesced(buffers, op))
    }

    /// Runs [`Comm::broadcast_coalesced`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system cannot start a thread.
    pub fn broadcast_coalesced_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        root: usize,
        buffers: Vec<B>,
    ) -> Result<Work<Vec<B>>> {
        self.in_background(buffers, move |comm, buffers| comm.broadcast_coalesced(root, buffers))
    }

    /// Runs [`Comm::all_gather_coalesced`] in the background. The handle yields all buffers.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system cannot start a thread.
    pub fn all_gather_coalesced_async<T: Element, S, R>(
        &self,
        sends: Vec<S>,
        recvs: Vec<R>,
    ) -> Result<Work<(Vec<S>, Vec<R>)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((sends, recvs), |comm, (sends, recvs)| comm.all_gather_coalesced(sends, recvs))
    }

    /// Runs [`Comm::reduce_scatter_coalesced`] in the background. The handle yields all buffers.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system cannot start a thread.
    pub fn reduce_scatter_coalesced_async<T: Element, S, R>(
        &self,
        sends: Vec<S>,
        recvs: Vec<R>,
        op: ReduceOp,
    ) -> Result<Work<(Vec<S>, Vec<R>)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((sends, recvs), move |comm, (sends, recvs)| {
            comm.reduce_scatter_coalesced(sends, recvs, op)
        })
    }
}
