//! What users hold.

mod alloc;
mod scan;
mod single;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::coalesced::Packing;
use crate::{
    AsView, AsViewMut, CallOptions, Communicator, Error, Exchange, Group, Host, HostCommunicator, LinkModel,
    Memory, ReduceOp, ReduceOrder, Result, Shares, Worker,
};

/// A group of ranks that communicate: the handle on which collectives are called.
///
/// Clones are handles to the same communicator with their own options; they share its one order of calls. Buffers
/// are slices, vectors and arrays of [`Element`](crate::Element)s for [`Host`], device buffers for other memories.
/// What holds for every call, its errors and its thread-safety, is written at [`Communicator`].
///
/// ```no_run
/// # fn example(comm: comm_core::Comm) -> comm_core::Result<()> {
/// use comm_core::ReduceOp;
///
/// let mut gradients = vec![comm.rank() as f32; 1000];
/// comm.all_reduce(&mut gradients, ReduceOp::Avg)?;
/// # Ok(())
/// # }
/// ```
pub struct Comm<M: Memory = Host> {
    communicator: Arc<M::Communicator>,
    options: CallOptions,
    /// Runs calls in the background, from the first one on.
    worker: Arc<OnceLock<Worker<M>>>,
    /// Where buffers that travel together are packed.
    packing: Packing,
    /// Sees to messages in the background, which do not queue behind calls.
    messenger: Arc<OnceLock<Worker<M>>>,
}

impl Comm<Host> {
    /// A handle to a communicator, with the default options.
    #[must_use]
    pub fn new(communicator: impl HostCommunicator + 'static) -> Self {
        Self::over(Arc::new(communicator))
    }
}

impl<M: Memory> Comm<M> {
    /// A handle to a communicator for any memory, with the default options.
    #[must_use]
    pub fn over(communicator: Arc<M::Communicator>) -> Self {
        Self {
            communicator,
            options: CallOptions::default(),
            worker: Arc::default(),
            packing: Packing::default(),
            messenger: Arc::default(),
        }
    }

    /// What carries out the calls, for what communicators for this memory can do beyond the calls of a handle;
    /// they are given its [`Comm::options`].
    #[must_use]
    pub fn communicator(&self) -> &M::Communicator {
        &self.communicator
    }

    /// What every call is given: for what communicators for this memory can do beyond the calls of a handle.
    #[must_use]
    pub const fn options(&self) -> &CallOptions {
        &self.options
    }

    /// The handle with these options.
    pub(crate) fn with_options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// What the calls of this handle must agree on besides what they say themselves: [`CallOptions::detail`].
    #[must_use]
    pub const fn detail(&self) -> u64 {
        self.options.detail
    }

    /// Where buffers that travel together are packed.
    pub(crate) const fn packing(&self) -> &Packing {
        &self.packing
    }

    /// A handle with the same options that does not share the workers, and so does not keep them waiting for itself.
    pub(crate) fn in_foreground(&self) -> Self {
        Self { worker: Arc::default(), messenger: Arc::default(), ..self.clone() }
    }

    /// The worker that runs the calls of all clones.
    pub(crate) fn worker(&self) -> Result<&Worker<M>> {
        self.started(&self.worker)
    }

    /// The worker that sees to the messages of all clones.
    pub(crate) fn messenger(&self) -> Result<&Worker<M>> {
        self.started(&self.messenger)
    }

    fn started<'a>(&self, worker: &'a OnceLock<Worker<M>>) -> Result<&'a Worker<M>> {
        if worker.get().is_none() {
            // Should another thread be first, this worker has nothing to do and ends.
            drop(worker.set(Worker::new(self.in_foreground())?));
        }
        worker.get().ok_or_else(|| Error::Internal("a worker was started and is gone".into()))
    }

    /// This member's rank, from 0 to size - 1.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.group().rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.group().size()
    }

    /// The group, seen by this member.
    #[must_use]
    pub fn group(&self) -> Group {
        self.communicator.group()
    }

    /// What messages cost between the ranks, as far as algorithms are chosen by it; see [`Communicator::links`].
    #[must_use]
    pub fn links(&self) -> Option<LinkModel> {
        self.communicator.links()
    }

    /// A handle to the same communicator whose calls have this long from start to deadline.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let mut handle = self.clone();
        handle.options.timeout = timeout;
        handle
    }

    /// A handle to the same communicator whose calls use the algorithm of this name. Every rank must name the same.
    #[must_use]
    pub fn with_algorithm(&self, name: impl Into<Cow<'static, str>>) -> Self {
        let mut handle = self.clone();
        handle.options.algorithm = Some(name.into());
        handle
    }

    /// A handle to the same communicator whose reductions keep this order.
    #[must_use]
    pub fn with_reduce_order(&self, order: ReduceOrder) -> Self {
        let mut handle = self.clone();
        handle.options.order = order;
        handle
    }

    /// A handle to the same communicator whose calls are only compatible with calls of the same
    /// [`CallOptions::detail`]. Every rank must give the same number.
    #[must_use]
    pub fn with_detail(&self, detail: u64) -> Self {
        let mut handle = self.clone();
        handle.options.detail = detail;
        handle
    }

    /// Combines the buffers of all ranks; every rank gets the result, in place. All buffers have the same length.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the operator is not defined on the element type; otherwise as
    /// written at [`Communicator`].
    pub fn all_reduce(&self, buffer: &mut (impl AsViewMut<M> + ?Sized), op: ReduceOp) -> Result<()> {
        self.communicator.all_reduce(Exchange::InPlace(buffer.as_view_mut()?), op, &self.options)
    }

    /// Combines `send` of all ranks into `recv` of every rank. All buffers have the same length.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`], and [`Error::Invalid`](crate::Error::Invalid) if lengths or types differ.
    pub fn all_reduce_into<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        op: ReduceOp,
    ) -> Result<()> {
        self.communicator.all_reduce(separate(send, recv)?, op, &self.options)
    }

    /// Combines the buffers of all ranks into `root`'s, in place. Other ranks' buffers are only read.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`], and [`Error::Invalid`](crate::Error::Invalid) if `root` is no member.
    pub fn reduce(&self, root: usize, buffer: &mut (impl AsViewMut<M> + ?Sized), op: ReduceOp) -> Result<()> {
        self.communicator.reduce(root, Exchange::InPlace(buffer.as_view_mut()?), op, &self.options)
    }

    /// Combines `send` of all ranks into `root`'s `recv`. On other ranks `recv` is ignored and may be empty.
    ///
    /// # Errors
    /// As [`Comm::reduce`], and [`Error::Invalid`](crate::Error::Invalid) if the root's lengths or types differ.
    pub fn reduce_into<S: AsView<M> + ?Sized>(
        &self,
        root: usize,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        op: ReduceOp,
    ) -> Result<()> {
        self.communicator.reduce(root, separate(send, recv)?, op, &self.options)
    }

    /// Contributes to a reduction whose result goes to `root`, another rank.
    ///
    /// # Errors
    /// As [`Comm::reduce`], and [`Error::Invalid`](crate::Error::Invalid) on the root itself.
    pub fn reduce_send(&self, root: usize, send: &(impl AsView<M> + ?Sized), op: ReduceOp) -> Result<()> {
        self.communicator.reduce(root, Exchange::SendOnly(send.as_view()?), op, &self.options)
    }

    /// Every rank gets the contents of `root`'s buffer. All buffers have the same length.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if `root` is no member; otherwise as written at [`Communicator`].
    pub fn broadcast(&self, root: usize, buffer: &mut (impl AsViewMut<M> + ?Sized)) -> Result<()> {
        self.communicator.broadcast(root, buffer.as_view_mut()?, &self.options)
    }

    /// Gathers `send` of all ranks, in rank order, into `recv` of every rank, which is `size` times as long.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if lengths or types do not fit; otherwise as written at
    /// [`Communicator`].
    pub fn all_gather<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
    ) -> Result<()> {
        self.communicator.all_gather(separate(send, recv)?, Shares::Equal, &self.options)
    }

    /// Gathers in place: `buffer` has one block per rank, and this rank's block holds its contribution.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the length does not divide among the ranks; otherwise as written
    /// at [`Communicator`].
    pub fn all_gather_in_place(&self, buffer: &mut (impl AsViewMut<M> + ?Sized)) -> Result<()> {
        self.communicator.all_gather(Exchange::InPlace(buffer.as_view_mut()?), Shares::Equal, &self.options)
    }

    /// Combines `send` of all ranks, which has one block per rank; `recv` gets the block of this rank.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if lengths, types or operator do not fit; otherwise as written at
    /// [`Communicator`].
    pub fn reduce_scatter<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        op: ReduceOp,
    ) -> Result<()> {
        self.communicator.reduce_scatter(separate(send, recv)?, Shares::Equal, op, &self.options)
    }

    /// Combines in place: the result lies in this rank's block of `buffer`; the other blocks are unspecified.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the length does not divide among the ranks or the operator does
    /// not fit; otherwise as written at [`Communicator`].
    pub fn reduce_scatter_in_place(
        &self,
        buffer: &mut (impl AsViewMut<M> + ?Sized),
        op: ReduceOp,
    ) -> Result<()> {
        self.communicator.reduce_scatter(
            Exchange::InPlace(buffer.as_view_mut()?),
            Shares::Equal,
            op,
            &self.options,
        )
    }

    /// Gathers `send` of all ranks, in rank order, into `root`'s `recv`, which is `size` times as long. On other ranks
    /// `recv` is ignored and may be empty.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if lengths or types do not fit or `root` is no member; otherwise as
    /// written at [`Communicator`].
    pub fn gather<S: AsView<M> + ?Sized>(
        &self,
        root: usize,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
    ) -> Result<()> {
        self.communicator.gather(root, separate(send, recv)?, Shares::Equal, &self.options)
    }

    /// A gather in which rank `i` contributes `counts[i]` elements. Only the root's `counts` are looked at; others may
    /// give an empty list.
    ///
    /// # Errors
    /// As [`Comm::gather`].
    pub fn gather_v<S: AsView<M> + ?Sized>(
        &self,
        root: usize,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        counts: &[usize],
    ) -> Result<()> {
        self.communicator.gather(root, separate(send, recv)?, Shares::Counts(counts), &self.options)
    }

    /// Every rank gets its block of `root`'s `send`, which has one block per rank, into `recv`. On other ranks `send`
    /// is ignored and may be empty.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if lengths or types do not fit or `root` is no member; otherwise as
    /// written at [`Communicator`].
    pub fn scatter<S: AsView<M> + ?Sized>(
        &self,
        root: usize,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
    ) -> Result<()> {
        self.communicator.scatter(root, separate(send, recv)?, Shares::Equal, &self.options)
    }

    /// A scatter in which rank `i` gets `counts[i]` elements. Only the root's `counts` are looked at; others may give
    /// an empty list.
    ///
    /// # Errors
    /// As [`Comm::scatter`].
    pub fn scatter_v<S: AsView<M> + ?Sized>(
        &self,
        root: usize,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        counts: &[usize],
    ) -> Result<()> {
        self.communicator.scatter(root, separate(send, recv)?, Shares::Counts(counts), &self.options)
    }

    /// An all-gather in which rank `i` contributes `counts[i]` elements, zero included. Every rank gives the same
    /// `counts`, and `recv` has room for all of them.
    ///
    /// # Errors
    /// As [`Comm::all_gather`].
    pub fn all_gather_v<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        counts: &[usize],
    ) -> Result<()> {
        self.communicator.all_gather(separate(send, recv)?, Shares::Counts(counts), &self.options)
    }

    /// A reduce-scatter in which rank `i` gets `counts[i]` elements, zero included. Every rank gives the same
    /// `counts`, and `send` has all of them.
    ///
    /// # Errors
    /// As [`Comm::reduce_scatter`].
    pub fn reduce_scatter_v<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        self.communicator.reduce_scatter(separate(send, recv)?, Shares::Counts(counts), op, &self.options)
    }

    /// Sends block `i` of `send` to rank `i`; block `i` of `recv` comes from rank `i`. Both have one block per rank, all
    /// of the same length.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if lengths or types do not fit; otherwise as written at
    /// [`Communicator`].
    pub fn all_to_all<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
    ) -> Result<()> {
        self.communicator.all_to_all(separate(send, recv)?, Shares::Equal, Shares::Equal, &self.options)
    }

    /// Exchanges in place: block `i` of `buffer` goes to rank `i`, and what comes from rank `i` takes its place.
    ///
    /// # Errors
    /// As [`Comm::all_to_all`].
    pub fn all_to_all_in_place(&self, buffer: &mut (impl AsViewMut<M> + ?Sized)) -> Result<()> {
        let buffers = Exchange::InPlace(buffer.as_view_mut()?);
        self.communicator.all_to_all(buffers, Shares::Equal, Shares::Equal, &self.options)
    }

    /// Sends block `i` of `send`, which has `send_counts[i]` elements, to rank `i`; block `i` of `recv`, which has
    /// `recv_counts[i]` elements, comes from rank `i`. Counts may be zero. What one rank sends must be what the other
    /// expects; otherwise both get [`Error::Desync`](crate::Error::Desync).
    ///
    /// # Errors
    /// As [`Comm::all_to_all`].
    pub fn all_to_all_v<S: AsView<M> + ?Sized>(
        &self,
        send: &S,
        send_counts: &[usize],
        recv: &mut (impl AsViewMut<M, Element = S::Element> + ?Sized),
        recv_counts: &[usize],
    ) -> Result<()> {
        let (sends, recvs) = (Shares::Counts(send_counts), Shares::Counts(recv_counts));
        self.communicator.all_to_all(separate(send, recv)?, sends, recvs, &self.options)
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// As written at [`Communicator`].
    pub fn barrier(&self) -> Result<()> {
        self.communicator.barrier(&self.options)
    }

    /// Leaves the group, and returns once every rank has called this. Calls in the background come first. It is the last
    /// call on the communicator: on clones of this handle, every later one fails.
    ///
    /// This is where a program learns that its last calls did not fit together. A rank that only sends, as the root of a
    /// broadcast does, returns before anybody can tell it that the others took another rank for the root. Dropping a
    /// communicator compares calls, too, as far as others have left before, but has nobody to return the error to: it goes
    /// to the log.
    ///
    /// # Errors
    /// [`Error::Desync`](crate::Error::Desync) if ranks did not make the same calls;
    /// [`Error::PeerLost`](crate::Error::PeerLost) for a rank that died, or left after fewer calls;
    /// [`Error::Timeout`](crate::Error::Timeout) naming the ranks that did not leave before the deadline.
    pub fn finalize(self) -> Result<()> {
        match self.worker.get() {
            Some(worker) => {
                let options = self.options.clone();
                worker.submit(move |comm| comm.communicator.finalize(&options)).wait()
            }
            None => self.communicator.finalize(&self.options),
        }
    }

    /// Ends the call in progress here and on every other rank with [`Error::Aborted`](crate::Error::Aborted), and
    /// makes the communicator unusable. Any thread may call this.
    pub fn abort(&self, reason: &str) {
        self.communicator.abort(reason);
    }
}

fn separate<'a, M: Memory>(
    send: &'a (impl AsView<M> + ?Sized),
    recv: &'a mut (impl AsViewMut<M> + ?Sized),
) -> Result<Exchange<'a, M>> {
    Ok(Exchange::Separate { send: send.as_view()?, recv: recv.as_view_mut()? })
}

impl<M: Memory> Clone for Comm<M> {
    fn clone(&self) -> Self {
        Self {
            communicator: Arc::clone(&self.communicator),
            options: self.options.clone(),
            worker: Arc::clone(&self.worker),
            packing: self.packing.clone(),
            messenger: Arc::clone(&self.messenger),
        }
    }
}

impl<M: Memory> std::fmt::Debug for Comm<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Comm").field("group", &self.group()).field("options", &self.options).finish()
    }
}
