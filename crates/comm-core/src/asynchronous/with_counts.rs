//! Collectives with a count per rank that run in the background.

use crate::{Comm, Element, Host, ReduceOp, Result, Work};

/// What holds for these is written at [`Comm::all_reduce_async`] and its like. They take the lists of counts, as they
/// outlive the call that starts them.
impl Comm<Host> {
    /// [`Comm::gather_v`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn gather_v_async<T: Element, S, R>(
        &self,
        root: usize,
        send: S,
        recv: R,
        counts: Vec<usize>,
    ) -> Result<Work<(S, R)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((send, recv), move |comm, (send, recv)| {
            comm.gather_v(root, send.as_ref(), recv.as_mut(), &counts)
        })
    }

    /// [`Comm::scatter_v`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn scatter_v_async<T: Element, S, R>(
        &self,
        root: usize,
        send: S,
        recv: R,
        counts: Vec<usize>,
    ) -> Result<Work<(S, R)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((send, recv), move |comm, (send, recv)| {
            comm.scatter_v(root, send.as_ref(), recv.as_mut(), &counts)
        })
    }

    /// [`Comm::all_gather_v`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn all_gather_v_async<T: Element, S, R>(
        &self,
        send: S,
        recv: R,
        counts: Vec<usize>,
    ) -> Result<Work<(S, R)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((send, recv), move |comm, (send, recv)| {
            comm.all_gather_v(send.as_ref(), recv.as_mut(), &counts)
        })
    }

    /// [`Comm::reduce_scatter_v`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn reduce_scatter_v_async<T: Element, S, R>(
        &self,
        send: S,
        recv: R,
        counts: Vec<usize>,
        op: ReduceOp,
    ) -> Result<Work<(S, R)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((send, recv), move |comm, (send, recv)| {
            comm.reduce_scatter_v(send.as_ref(), recv.as_mut(), &counts, op)
        })
    }

    /// [`Comm::all_to_all_v`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn all_to_all_v_async<T: Element, S, R>(
        &self,
        send: S,
        send_counts: Vec<usize>,
        recv: R,
        recv_counts: Vec<usize>,
    ) -> Result<Work<(S, R)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((send, recv), move |comm, (send, recv)| {
            comm.all_to_all_v(send.as_ref(), &send_counts, recv.as_mut(), &recv_counts)
        })
    }
}
