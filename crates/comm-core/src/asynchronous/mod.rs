//! Collectives that run in the background.

mod coalesced;
mod with_counts;

use crate::{Comm, Element, Host, ReduceOp, Result, Work};

/// Each of these returns at once, with a handle that owns the buffers until the call has ended. The calls run one after
/// the other, in the order in which they were made, on a thread that the first of them starts and all clones of the
/// handle share. They complete whether or not anybody waits for their handle; dropping the last clone of the
/// communicator waits for them.
///
/// Direct calls do not queue behind them. Ranks must agree on the order of all calls, so wait for the handles before a
/// direct call, or make that call in the background too.
///
/// A buffer that panics aborts the communicator on every rank, since the others may be in the call by then.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) if there is no thread to be had. What can go wrong with the call itself comes out of
/// the handle, also [`Error::Invalid`](crate::Error::Invalid), and [`Error::Panicked`](crate::Error::Panicked) for a
/// buffer that panicked.
impl Comm<Host> {
    /// [`Comm::all_reduce`] in the background.
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(3, |comm| {
    ///     let first = comm.all_reduce_async(vec![1.0; 1000], ReduceOp::Sum).unwrap();
    ///     let second = comm.all_reduce_async(vec![comm.rank() as i32], ReduceOp::Max).unwrap();
    ///     // Compute something else meanwhile.
    ///     assert_eq!(first.wait().unwrap(), [3.0; 1000]);
    ///     assert_eq!(second.wait().unwrap(), [2]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn all_reduce_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        buffer: B,
        op: ReduceOp,
    ) -> Result<Work<B>> {
        self.in_background(buffer, move |comm, buffer| comm.all_reduce(buffer.as_mut(), op))
    }

    /// [`Comm::reduce`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn reduce_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        root: usize,
        buffer: B,
        op: ReduceOp,
    ) -> Result<Work<B>> {
        self.in_background(buffer, move |comm, buffer| comm.reduce(root, buffer.as_mut(), op))
    }

    /// [`Comm::broadcast`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn broadcast_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        root: usize,
        buffer: B,
    ) -> Result<Work<B>> {
        self.in_background(buffer, move |comm, buffer| comm.broadcast(root, buffer.as_mut()))
    }

    /// [`Comm::all_gather`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn all_gather_async<T: Element, S, R>(&self, send: S, recv: R) -> Result<Work<(S, R)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((send, recv), |comm, (send, recv)| comm.all_gather(send.as_ref(), recv.as_mut()))
    }

    /// [`Comm::reduce_scatter`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn reduce_scatter_async<T: Element, S, R>(
        &self,
        send: S,
        recv: R,
        op: ReduceOp,
    ) -> Result<Work<(S, R)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((send, recv), move |comm, (send, recv)| {
            comm.reduce_scatter(send.as_ref(), recv.as_mut(), op)
        })
    }

    /// [`Comm::all_to_all`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn all_to_all_async<T: Element, S, R>(&self, send: S, recv: R) -> Result<Work<(S, R)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((send, recv), |comm, (send, recv)| comm.all_to_all(send.as_ref(), recv.as_mut()))
    }

    /// [`Comm::gather`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn gather_async<T: Element, S, R>(&self, root: usize, send: S, recv: R) -> Result<Work<(S, R)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((send, recv), move |comm, (send, recv)| {
            comm.gather(root, send.as_ref(), recv.as_mut())
        })
    }

    /// [`Comm::scatter`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn scatter_async<T: Element, S, R>(&self, root: usize, send: S, recv: R) -> Result<Work<(S, R)>>
    where
        S: AsRef<[T]> + Send + 'static,
        R: AsMut<[T]> + Send + 'static,
    {
        self.in_background((send, recv), move |comm, (send, recv)| {
            comm.scatter(root, send.as_ref(), recv.as_mut())
        })
    }

    /// [`Comm::all_gather_in_place`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn all_gather_in_place_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        buffer: B,
    ) -> Result<Work<B>> {
        self.in_background(buffer, |comm, buffer| comm.all_gather_in_place(buffer.as_mut()))
    }

    /// [`Comm::reduce_scatter_in_place`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn reduce_scatter_in_place_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        buffer: B,
        op: ReduceOp,
    ) -> Result<Work<B>> {
        self.in_background(buffer, move |comm, buffer| comm.reduce_scatter_in_place(buffer.as_mut(), op))
    }

    /// [`Comm::all_to_all_in_place`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn all_to_all_in_place_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        buffer: B,
    ) -> Result<Work<B>> {
        self.in_background(buffer, |comm, buffer| comm.all_to_all_in_place(buffer.as_mut()))
    }

    /// [`Comm::scan`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn scan_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        buffer: B,
        op: ReduceOp,
    ) -> Result<Work<B>> {
        self.in_background(buffer, move |comm, buffer| comm.scan(buffer.as_mut(), op))
    }

    /// [`Comm::exscan`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn exscan_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        buffer: B,
        op: ReduceOp,
    ) -> Result<Work<B>> {
        self.in_background(buffer, move |comm, buffer| comm.exscan(buffer.as_mut(), op))
    }

    /// [`Comm::barrier`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn barrier_async(&self) -> Result<Work<()>> {
        self.in_background((), |comm, ()| comm.barrier())
    }

    /// Runs a call on buffers behind all that were made before it.
    fn in_background<B: Send + 'static>(
        &self,
        mut buffers: B,
        call: impl FnOnce(&Self, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Work<B>> {
        let comm = self.in_foreground();
        Ok(self.worker()?.submit(move |_| call(&comm, &mut buffers).map(|()| buffers)))
    }
}
