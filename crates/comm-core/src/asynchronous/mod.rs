//! Collectives that run in the background.

mod coalesced;

use crate::{AsView, AsViewMut, Comm, Host, Memory, ReduceOp, Result, Work};

/// Defines background forms of calls with one buffer in memory `M`, given the parameters before and
/// after the buffer.
macro_rules! with_one_buffer {
    ($M:ty; $( $(#[$doc:meta])* $name:ident = $call:ident [$($before:ident: $B:ty)?] [$($after:ident: $A:ty)?] )+) => { $(
        #[doc = concat!("Runs [`Comm::", stringify!($call), "`] in the background.")]
        $(#[$doc])*
        /// # Errors
        /// [`Error::Io`](crate::Error::Io) if the system cannot start a thread.
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

/// Defines background forms of calls with a send and a receive buffer, given the parameters before
/// and after them.
macro_rules! with_two_buffers {
    ($( $name:ident = $call:ident [$($before:ident: $B:ty)?] [$($after:ident: $A:ty => $given:expr),*] )+) => { $(
        #[doc = concat!("Runs [`Comm::", stringify!($call), "`] in the background. The handle yields both buffers.")]
        /// # Errors
        /// [`Error::Io`](crate::Error::Io) if the system cannot start a thread.
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

/// Background calls: each returns immediately with a handle that owns the buffers until the call
/// has ended. The calls run in the order in which they were made, on one thread that the first of
/// them starts and that all clones of the handle share. They complete whether or not anyone waits
/// for their handles; dropping the last clone of the communicator waits for them.
///
/// Direct calls do not wait for background calls. Ranks must agree on the order of all calls, so
/// wait for the handles before a direct call, or make that call in the background too.
///
/// Background calls accept the same buffers as direct calls, on the host or on a device. Calls with
/// a count per rank take ownership of the lists of counts, because they outlive the method. Like a
/// direct call, a call on device buffers is done once it has been enqueued on the stream of its
/// buffers.
///
/// If the code of a buffer panics, the communicator is aborted on every rank, because other ranks
/// may already be in the call.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) if the system cannot start a thread. The handle yields the
/// errors of the call itself, including [`Error::Invalid`](crate::Error::Invalid), and
/// [`Error::Panicked`](crate::Error::Panicked) if a buffer panicked.
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

    /// Runs [`Comm::all_to_all_v`] in the background. The handle yields both buffers.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system cannot start a thread.
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

    /// Runs [`Comm::barrier`] in the background.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system cannot start a thread.
    pub fn barrier_async(&self) -> Result<Work<()>> {
        self.in_background((), |comm, ()| comm.barrier())
    }

    /// Runs a call on buffers after all background calls that were made before it.
    fn in_background<B: Send + 'static>(
        &self,
        mut buffers: B,
        call: impl FnOnce(&Self, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Work<B>> {
        let comm = self.in_foreground();
        Ok(self.worker()?.submit(move |_| call(&comm, &mut buffers).map(|()| buffers)))
    }
}

/// Background prefix reductions, which only communicators for host memory support.
impl Comm<Host> {
    with_one_buffer! { Host;
        scan_async = scan [] [op: ReduceOp]
        exscan_async = exscan [] [op: ReduceOp]
    }
}
