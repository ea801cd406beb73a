//! Collectives that run in the background.

mod coalesced;

use crate::{AsView, AsViewMut, Comm, Host, Memory, ReduceOp, Result, Work};

/// Defines background forms of calls with one buffer in memory `M`: parameters before the buffer, and after it.
macro_rules! with_one_buffer {
    ($M:ty; $( $(#[$doc:meta])* $name:ident = $call:ident [$($before:ident: $B:ty)?] [$($after:ident: $A:ty)?] )+) => { $(
        #[doc = concat!("[`Comm::", stringify!($call), "`] in the background.")]
        $(#[$doc])*
        ///
        /// # Errors
        /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
        pub fn $name<B: AsViewMut<$M> + Send + 'static>(
            &self,
            $($before: $B,)?
            buffer: B,
            $($after: $A,)?
        ) -> Result<Work<B>> {
            self.in_background(buffer, move |comm, buffer| comm.$call($($before,)? buffer, $($after)?))
        }
    )+ };
}

/// Defines background forms of calls with a send and a receive buffer: parameters before them, and
/// after them with what the call takes.
macro_rules! with_two_buffers {
    ($( $name:ident = $call:ident [$($before:ident: $B:ty)?] [$($after:ident: $A:ty => $given:expr),*] )+) => { $(
        #[doc = concat!("[`Comm::", stringify!($call), "`] in the background. Both buffers come back.")]
        ///
        /// # Errors
        /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
        pub fn $name<S, R>(&self, $($before: $B,)? send: S, recv: R, $($after: $A),*) -> Result<Work<(S, R)>>
        where
            S: AsView<M> + Send + 'static,
            R: AsViewMut<M, Element = S::Element> + Send + 'static,
        {
            self.in_background((send, recv), move |comm, (send, recv)| {
                comm.$call($($before,)? send, recv, $($given),*)
            })
        }
    )+ };
}

/// Each of these returns at once, with a handle that owns the buffers until the call has ended. The calls run one after
/// the other, in the order in which they were made, on a thread that the first of them starts and all clones of the
/// handle share. They complete whether or not anybody waits for their handle; dropping the last clone of the
/// communicator waits for them.
///
/// Direct calls do not queue behind them. Ranks must agree on the order of all calls, so wait for the handles before a
/// direct call, or make that call in the background too.
///
/// The buffers are those of direct calls, of the host or of a device. Calls with a count per rank take the lists of counts,
/// as these must outlive the call that starts them. Calls on buffers of devices are done when they lie on the stream of
/// their buffers, as direct calls are.
///
/// A buffer that panics aborts the communicator on every rank, since the others may be in the call by then.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) if there is no thread to be had. What can go wrong with the call itself comes out of
/// the handle, also [`Error::Invalid`](crate::Error::Invalid), and [`Error::Panicked`](crate::Error::Panicked) for a
/// buffer that panicked.
impl<M: Memory> Comm<M> {
    with_one_buffer! { M;
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
        all_reduce_async = all_reduce [] [op: ReduceOp]
        reduce_async = reduce [root: usize] [op: ReduceOp]
        broadcast_async = broadcast [root: usize] []
        all_gather_in_place_async = all_gather_in_place [] []
        reduce_scatter_in_place_async = reduce_scatter_in_place [] [op: ReduceOp]
        all_to_all_in_place_async = all_to_all_in_place [] []
    }

    with_two_buffers! {
        all_gather_async = all_gather [] []
        reduce_scatter_async = reduce_scatter [] [op: ReduceOp => op]
        all_to_all_async = all_to_all [] []
        gather_async = gather [root: usize] []
        scatter_async = scatter [root: usize] []
        all_gather_v_async = all_gather_v [] [counts: Vec<usize> => &counts]
        reduce_scatter_v_async = reduce_scatter_v [] [counts: Vec<usize> => &counts, op: ReduceOp => op]
        gather_v_async = gather_v [root: usize] [counts: Vec<usize> => &counts]
        scatter_v_async = scatter_v [root: usize] [counts: Vec<usize> => &counts]
    }

    /// [`Comm::all_to_all_v`] in the background. Both buffers come back.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn all_to_all_v_async<S, R>(
        &self,
        send: S,
        send_counts: Vec<usize>,
        recv: R,
        recv_counts: Vec<usize>,
    ) -> Result<Work<(S, R)>>
    where
        S: AsView<M> + Send + 'static,
        R: AsViewMut<M, Element = S::Element> + Send + 'static,
    {
        self.in_background((send, recv), move |comm, (send, recv)| {
            comm.all_to_all_v(send, &send_counts, recv, &recv_counts)
        })
    }

    /// [`Comm::barrier`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is no thread to be had.
    pub fn barrier_async(&self) -> Result<Work<()>> {
        self.in_background((), |comm, ()| comm.barrier())
    }

    /// Runs a call on buffers after all calls that were made before it.
    fn in_background<B: Send + 'static>(
        &self,
        mut buffers: B,
        call: impl FnOnce(&Self, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Work<B>> {
        let comm = self.in_foreground();
        Ok(self.worker()?.submit(move |_| call(&comm, &mut buffers).map(|()| buffers)))
    }
}

/// Prefix reductions, which communicators of host memory have.
impl Comm<Host> {
    with_one_buffer! { Host;
        scan_async = scan [] [op: ReduceOp]
        exscan_async = exscan [] [op: ReduceOp]
    }
}
