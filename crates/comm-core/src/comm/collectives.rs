//! The collectives as methods.

use crate::{AsView, AsViewMut, Buffers, Call, Comm, Communicator, Counts, Group, Memory, ReduceOp, Result};

impl<M: Memory> Comm<M> {
    /// Returns the rank of this member, from 0 to size - 1.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.group().rank()
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.group().size()
    }

    /// Returns the group, as seen by this member.
    #[must_use]
    pub fn group(&self) -> Group {
        self.communicator.group()
    }

    /// Combines the buffers of all ranks; every rank gets the result, in place. All buffers have
    /// the same length.
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(3, |comm| {
    ///     let mut buffer = [comm.rank() as u64, 10];
    ///     comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
    ///     assert_eq!(buffer, [0 + 1 + 2, 10 + 10 + 10]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the operator is not defined on the element
    /// type; otherwise see [`Communicator`].
    pub fn all_reduce(&self, buffer: &mut (impl AsViewMut<M> + ?Sized), op: ReduceOp) -> Result<()> {
        self.run(Call::AllReduce { buffers: Buffers::InPlace(buffer.as_view_mut()?), op })
    }

    /// Combines `send` of all ranks into `recv` of every rank. All buffers have the same length.
    ///
    /// # Errors
    /// Same as [`Comm::all_reduce`], and [`Error::Invalid`](crate::Error::Invalid) if lengths or
    /// types differ.
    pub fn all_reduce_into<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        op: ReduceOp,
    ) -> Result<()> {
        self.run(Call::AllReduce { buffers: separate(send, recv)?, op })
    }

    /// Combines the buffers of all ranks into `root`'s, in place. Other ranks' buffers are only
    /// read.
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(3, |comm| {
    ///     let mut slowest = [0.5 * comm.rank() as f64];
    ///     comm.reduce(0, &mut slowest, ReduceOp::Max).unwrap();
    ///     if comm.rank() == 0 {
    ///         assert_eq!(slowest, [1.0]);
    ///     }
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Comm::all_reduce`], and [`Error::Invalid`](crate::Error::Invalid) if `root` is not
    /// a member.
    pub fn reduce(&self, root: usize, buffer: &mut (impl AsViewMut<M> + ?Sized), op: ReduceOp) -> Result<()> {
        self.run(Call::Reduce { root, buffers: Buffers::InPlace(buffer.as_view_mut()?), op })
    }

    /// Combines `send` of all ranks into `root`'s `recv`. On other ranks `recv` is ignored and may
    /// be empty.
    ///
    /// # Errors
    /// Same as [`Comm::reduce`], and [`Error::Invalid`](crate::Error::Invalid) if the root's
    /// lengths or types differ.
    pub fn reduce_into<S: AsView<M> + ?Sized>(
        &self,
        root: usize,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        op: ReduceOp,
    ) -> Result<()> {
        self.run(Call::Reduce { root, buffers: separate(send, recv)?, op })
    }

    /// Contributes to a reduction whose result goes to `root`, another rank.
    ///
    /// # Errors
    /// Same as [`Comm::reduce`], and [`Error::Invalid`](crate::Error::Invalid) on the root itself.
    pub fn reduce_send(&self, root: usize, send: &(impl AsView<M> + ?Sized), op: ReduceOp) -> Result<()> {
        self.run(Call::Reduce { root, buffers: Buffers::SendOnly(send.as_view()?), op })
    }

    /// Sends the contents of `root`'s buffer to every rank. All buffers have the same length.
    ///
    /// ```
    /// comm::threads::run(3, |comm| {
    ///     let mut model = if comm.rank() == 0 { [0.25_f32, 0.75] } else { [0.0; 2] };
    ///     comm.broadcast(0, &mut model).unwrap();
    ///     assert_eq!(model, [0.25, 0.75]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if `root` is not a member; otherwise see
    /// [`Communicator`].
    pub fn broadcast(&self, root: usize, buffer: &mut (impl AsViewMut<M> + ?Sized)) -> Result<()> {
        self.run(Call::Broadcast { root, buffer: buffer.as_view_mut()? })
    }

    /// Gathers `send` of all ranks, in rank order, into `recv` of every rank, which is `size` times
    /// as long.
    ///
    /// ```
    /// comm::threads::run(3, |comm| {
    ///     let rank = comm.rank() as u32;
    ///     let mut all = [0; 6];
    ///     comm.all_gather(&[rank, 10 * rank], &mut all).unwrap();
    ///     assert_eq!(all, [0, 0, 1, 10, 2, 20]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if lengths or types do not match; otherwise see
    /// [`Communicator`].
    pub fn all_gather<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
    ) -> Result<()> {
        self.run(Call::AllGather { buffers: separate(send, recv)?, counts: Counts::Equal })
    }

    /// Gathers in place: `buffer` has one block per rank, and this rank's block holds its
    /// contribution.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the length is not a multiple of the number of
    /// ranks; otherwise see [`Communicator`].
    pub fn all_gather_in_place(&self, buffer: &mut (impl AsViewMut<M> + ?Sized)) -> Result<()> {
        self.run(Call::AllGather { buffers: Buffers::InPlace(buffer.as_view_mut()?), counts: Counts::Equal })
    }

    /// Combines `send` of all ranks, which has one block per rank; `recv` gets the block of this
    /// rank.
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(3, |comm| {
    ///     let mut sum = [0];
    ///     comm.reduce_scatter(&[1, 2, 3], &mut sum, ReduceOp::Sum).unwrap();
    ///     assert_eq!(sum, [[3], [6], [9]][comm.rank()]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if lengths or types do not match or the operator
    /// is not defined on the type; otherwise see [`Communicator`].
    pub fn reduce_scatter<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        op: ReduceOp,
    ) -> Result<()> {
        self.run(Call::ReduceScatter { buffers: separate(send, recv)?, counts: Counts::Equal, op })
    }

    /// Combines in place: the result is in this rank's block of `buffer`; the other blocks are
    /// unspecified.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the length is not a multiple of the number of
    /// ranks, or the operator is not defined on the type; otherwise see [`Communicator`].
    pub fn reduce_scatter_in_place(
        &self,
        buffer: &mut (impl AsViewMut<M> + ?Sized),
        op: ReduceOp,
    ) -> Result<()> {
        self.run(Call::ReduceScatter {
            buffers: Buffers::InPlace(buffer.as_view_mut()?),
            counts: Counts::Equal,
            op,
        })
    }

    /// Gathers `send` of all ranks, in rank order, into `root`'s `recv`, which is `size` times as
    /// long. On other ranks `recv` is ignored and may be empty.
    ///
    /// ```
    /// comm::threads::run(3, |comm| {
    ///     let mut all = vec![0; if comm.rank() == 0 { 3 } else { 0 }];
    ///     comm.gather(0, &[10 * comm.rank() as i32], &mut all).unwrap();
    ///     if comm.rank() == 0 {
    ///         assert_eq!(all, [0, 10, 20]);
    ///     }
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if lengths or types do not match or `root` is not
    /// a member; otherwise see [`Communicator`].
    pub fn gather<S: AsView<M> + ?Sized>(
        &self,
        root: usize,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
    ) -> Result<()> {
        self.run(Call::Gather { root, buffers: separate(send, recv)?, counts: Counts::Equal })
    }

    /// Gathers `counts[i]` elements from each rank `i`. Only the root's `counts` are used; others
    /// may pass an empty list.
    ///
    /// ```
    /// comm::threads::run(3, |comm| {
    ///     let mine = vec![comm.rank() as u8; comm.rank()];
    ///     let mut all = vec![0; if comm.rank() == 0 { 0 + 1 + 2 } else { 0 }];
    ///     comm.gather_v(0, &mine, &mut all, &[0, 1, 2]).unwrap();
    ///     if comm.rank() == 0 {
    ///         assert_eq!(all, [1, 2, 2]);
    ///     }
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Comm::gather`].
    pub fn gather_v<S: AsView<M> + ?Sized>(
        &self,
        root: usize,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        counts: &[usize],
    ) -> Result<()> {
        self.run(Call::Gather { root, buffers: separate(send, recv)?, counts: Counts::PerRank(counts) })
    }

    /// Sends each rank its block of `root`'s `send`, which has one block per rank, into `recv`. On
    /// other ranks `send` is ignored and may be empty.
    ///
    /// ```
    /// comm::threads::run(3, |comm| {
    ///     let all = if comm.rank() == 0 { vec![1.5_f64, 2.5, 3.5] } else { Vec::new() };
    ///     let mut mine = [0.0];
    ///     comm.scatter(0, &all, &mut mine).unwrap();
    ///     assert_eq!(mine, [1.5 + comm.rank() as f64]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if lengths or types do not match or `root` is not
    /// a member; otherwise see [`Communicator`].
    pub fn scatter<S: AsView<M> + ?Sized>(
        &self,
        root: usize,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
    ) -> Result<()> {
        self.run(Call::Scatter { root, buffers: separate(send, recv)?, counts: Counts::Equal })
    }

    /// Scatters `counts[i]` elements to each rank `i`. Only the root's `counts` are used; others
    /// may pass an empty list.
    ///
    /// # Errors
    /// Same as [`Comm::scatter`].
    pub fn scatter_v<S: AsView<M> + ?Sized>(
        &self,
        root: usize,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        counts: &[usize],
    ) -> Result<()> {
        self.run(Call::Scatter { root, buffers: separate(send, recv)?, counts: Counts::PerRank(counts) })
    }

    /// Gathers `counts[i]` elements, zero included, from each rank `i` on every rank. Every rank
    /// passes the same `counts`, and the length of `recv` is their sum.
    ///
    /// # Errors
    /// Same as [`Comm::all_gather`].
    pub fn all_gather_v<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        counts: &[usize],
    ) -> Result<()> {
        self.run(Call::AllGather { buffers: separate(send, recv)?, counts: Counts::PerRank(counts) })
    }

    /// Combines `send` of all ranks; rank `i` gets `counts[i]` elements, zero included. Every rank
    /// passes the same `counts`, and the length of `send` is their sum.
    ///
    /// # Errors
    /// Same as [`Comm::reduce_scatter`].
    pub fn reduce_scatter_v<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        self.run(Call::ReduceScatter { buffers: separate(send, recv)?, counts: Counts::PerRank(counts), op })
    }

    /// Sends block `i` of `send` to rank `i`; block `i` of `recv` comes from rank `i`. Both have
    /// one block per rank, all of the same length.
    ///
    /// ```
    /// comm::threads::run(2, |comm| {
    ///     let send = if comm.rank() == 0 { ["ab", "cd"] } else { ["ef", "gh"] }.concat();
    ///     let mut recv = [0; 4];
    ///     comm.all_to_all(send.as_bytes(), &mut recv).unwrap();
    ///     assert_eq!(&recv, if comm.rank() == 0 { b"abef" } else { b"cdgh" });
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if lengths or types do not match; otherwise see
    /// [`Communicator`].
    pub fn all_to_all<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
    ) -> Result<()> {
        self.run(Call::AllToAll { buffers: separate(send, recv)?, send: Counts::Equal, recv: Counts::Equal })
    }

    /// Exchanges in place: block `i` of `buffer` goes to rank `i`, and the block from rank `i`
    /// replaces it.
    ///
    /// # Errors
    /// Same as [`Comm::all_to_all`].
    pub fn all_to_all_in_place(&self, buffer: &mut (impl AsViewMut<M> + ?Sized)) -> Result<()> {
        let buffers = Buffers::InPlace(buffer.as_view_mut()?);
        self.run(Call::AllToAll { buffers, send: Counts::Equal, recv: Counts::Equal })
    }

    /// Sends block `i` of `send`, which has `send_counts[i]` elements, to rank `i`; block `i` of
    /// `recv`, which has `recv_counts[i]` elements, comes from rank `i`. Counts may be zero. The
    /// count that one rank sends must be the count that the other expects; otherwise both get
    /// [`Error::Desync`](crate::Error::Desync).
    ///
    /// # Errors
    /// Same as [`Comm::all_to_all`].
    pub fn all_to_all_v<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        send_counts: &[usize],
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        recv_counts: &[usize],
    ) -> Result<()> {
        let (sends, recvs) = (Counts::PerRank(send_counts), Counts::PerRank(recv_counts));
        self.run(Call::AllToAll { buffers: separate(send, recv)?, send: sends, recv: recvs })
    }

    /// Returns once every rank has called this.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn barrier(&self) -> Result<()> {
        self.run(Call::Barrier)
    }

    /// Leaves the group, and returns once every rank has called this. Background calls run first.
    /// It is the last call on the communicator: later calls on clones of this handle fail. Groups
    /// created from this one have their own communicators: finalize or drop each of them
    /// separately.
    ///
    /// This call detects that the last calls of the ranks did not match. Without it, a rank that
    /// only sends, like the root of a broadcast, may return before it could detect that the others
    /// used another root. Dropping a communicator also compares calls with the ranks that have
    /// already left, but can only log the error.
    ///
    /// # Errors
    /// [`Error::Desync`](crate::Error::Desync) if ranks did not make the same calls;
    /// [`Error::PeerLost`](crate::Error::PeerLost) for a rank that died, or left after fewer calls;
    /// [`Error::Timeout`](crate::Error::Timeout) naming the ranks that did not leave before the
    /// deadline.
    pub fn finalize(self) -> Result<()> {
        match self.worker.get() {
            Some(worker) => {
                let options = self.options.clone();
                worker.submit(move |comm| comm.communicator.run(Call::Finalize, &options)).wait()
            }
            None => self.run(Call::Finalize),
        }
    }

    /// Ends the call in progress here and on every other rank with
    /// [`Error::Aborted`](crate::Error::Aborted), and makes the communicator unusable. Background
    /// calls that have not begun end with the same error. Any thread may call this.
    pub fn abort(&self, reason: &str) {
        self.communicator.abort(reason);
        if let Some(worker) = self.worker.get() {
            let cause = crate::Error::Aborted { by: self.rank(), reason: reason.into() };
            worker.cancel(cause);
        }
    }
}

impl<M: Memory> Comm<M> {
    /// Makes a call with the options of this handle.
    #[inline]
    pub(crate) fn run(&self, call: Call<'_, M>) -> Result<()> {
        self.communicator.run(call, &self.options)
    }
}

pub(super) fn separate<'a, M: Memory>(
    send: &'a (impl AsView<M> + ?Sized),
    recv: &'a mut (impl AsViewMut<M> + ?Sized),
) -> Result<Buffers<'a, M>> {
    Ok(Buffers::Separate { send: send.as_view()?, recv: recv.as_view_mut()? })
}
