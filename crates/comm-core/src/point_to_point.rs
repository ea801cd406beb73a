//! Messages between two ranks, for users.

use std::marker::PhantomData;

use crate::message::posted_before;
use crate::panics::caught;
use crate::work::Completer;
use crate::{
    AsView, AsViewMut, Comm, Element, Error, Host, HostView, HostViewMut, Incoming, Invalid, Outgoing,
    Received, RecvFrom, Result, SendTo, Source, StartedSend, TagMatch, Unsent, Work,
};

/// Messages between two ranks. [`PointToPoint`](crate::PointToPoint) documents their order, errors
/// and thread-safety.
///
/// Background calls (`_async`) return immediately, with a handle that owns the buffer until the
/// message is sent or received. Thousands may be pending, and they complete in any order: unlike
/// background collectives, they do not wait for each other. The first of them starts a thread,
/// shared by all clones of the handle, that makes progress on messages whether or not anyone waits
/// for them. Dropping the last clone of the communicator cancels the receives that no message has
/// matched, with [`Error::Cancelled`], and waits for the rest.
impl Comm<Host> {
    /// Sends `message` to rank `to`, which may be this one. The buffer may be reused when this
    /// returns.
    ///
    /// ```
    /// use comm::{ANY_TAG, Source};
    ///
    /// comm::threads::run(2, |comm| {
    ///     if comm.rank() == 0 {
    ///         let mut buffer = [0.0; 100];
    ///         let received = comm.recv(Source::Any, ANY_TAG, &mut buffer).unwrap();
    ///         assert_eq!((received.source, received.tag), (1, 7));
    ///         assert_eq!(buffer[..received.len], [1.5, 2.5]);
    ///     } else {
    ///         comm.send(0, 7, &[1.5, 2.5]).unwrap();
    ///     }
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`PointToPoint`](crate::PointToPoint).
    pub fn send(&self, to: usize, tag: u64, message: &(impl AsView + ?Sized)) -> Result<()> {
        self.communicator().send(to, tag, message.as_view()?, self.options())
    }

    /// Receives the oldest matching message into a buffer that is long enough for it, and returns
    /// its envelope. The buffer may be longer than the message.
    ///
    /// # Errors
    /// See [`PointToPoint`](crate::PointToPoint).
    pub fn recv(
        &self,
        from: impl Into<Source>,
        tag: impl Into<TagMatch>,
        buffer: &mut (impl AsViewMut + ?Sized),
    ) -> Result<Received> {
        self.communicator().recv(from.into(), tag.into(), buffer.as_view_mut()?, self.options())
    }

    /// Receives the oldest matching message, whose length need not be known, into a vector of its
    /// length.
    ///
    /// The message is probed first, so the call may take up to twice the timeout. If another thread
    /// receives the probed message in the meantime, this call receives the next one.
    ///
    /// ```
    /// use comm::{ANY_TAG, Source};
    ///
    /// comm::threads::run(3, |comm| {
    ///     if comm.rank() == 0 {
    ///         for _ in 1..3 {
    ///             let (numbers, received) = comm.recv_vec::<f64>(Source::Any, ANY_TAG).unwrap();
    ///             assert_eq!(numbers, vec![0.5; received.source]);
    ///         }
    ///     } else {
    ///         comm.send(0, 7, &vec![0.5; comm.rank()]).unwrap();
    ///     }
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Comm::recv`]: [`Error::Invalid`](crate::Error::Invalid) if the message has
    /// elements of another type.
    pub fn recv_vec<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<TagMatch>,
    ) -> Result<(Vec<T>, Received)> {
        let (from, tag) = (from.into(), tag.into());
        let mut len = self.probe(from, tag)?.len;
        loop {
            let mut buffer = vec![T::zeroed(); len];
            match self.recv(from, tag, &mut buffer) {
                Ok(received) => {
                    buffer.truncate(received.len);
                    return Ok((buffer, received));
                }
                // Another thread received the probed message, and the next one is longer.
                Err(Error::Invalid(Invalid::Message { len: next, dtype, .. }))
                    if dtype == T::DTYPE && next > len =>
                {
                    len = next;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends one message and receives another at the same time, so that a cycle of ranks that all
    /// do this does not deadlock. The two may differ in length and type.
    ///
    /// `to` is a rank and a tag, or only a rank, with tag 0. `from` is a rank or [`Source::Any`]
    /// and a tag, or only the source, with any tag. For the ends of a line of ranks, which lack a
    /// neighbor, [`Cart::send_recv`](crate::Cart::send_recv) accepts
    /// [`PROC_NULL`](crate::PROC_NULL).
    ///
    /// ```
    /// comm::threads::run(3, |comm| {
    ///     let (next, last) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
    ///     let mut theirs = [0; 2];
    ///     comm.send_recv(next, &[comm.rank(), 10], last, &mut theirs).unwrap();
    ///     assert_eq!(theirs, [last, 10]);
    ///
    ///     comm.send_recv((next, 7), &comm.rank(), (last, 7), &mut theirs[1]).unwrap();
    ///     assert_eq!(theirs, [last, last]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`PointToPoint`](crate::PointToPoint).
    pub fn send_recv(
        &self,
        to: impl Into<SendTo>,
        message: &(impl AsView + ?Sized),
        from: impl Into<RecvFrom>,
        buffer: &mut (impl AsViewMut + ?Sized),
    ) -> Result<Received> {
        let (message, buffer) = (message.as_view()?, buffer.as_view_mut()?);
        self.communicator().send_recv(to.into(), message, from.into(), buffer, self.options())
    }

    /// Waits for a message that matches, and returns its envelope without receiving it. Another
    /// thread may receive it first.
    ///
    /// # Errors
    /// See [`PointToPoint`](crate::PointToPoint).
    pub fn probe(&self, from: impl Into<Source>, tag: impl Into<TagMatch>) -> Result<Received> {
        self.communicator().probe(from.into(), tag.into(), self.options())
    }

    /// Returns the envelope of a message that matches, if one has arrived.
    ///
    /// # Errors
    /// See [`PointToPoint::try_probe`](crate::PointToPoint::try_probe).
    pub fn try_probe(&self, from: impl Into<Source>, tag: impl Into<TagMatch>) -> Result<Option<Received>> {
        self.communicator().try_probe(from.into(), tag.into())
    }

    /// Runs [`Comm::send`] in the background. Dropping the handle does not cancel the message.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system cannot start a thread. The handle yields the
    /// errors of the message itself.
    pub fn send_async<T: Element, B: AsRef<[T]> + Send + 'static>(
        &self,
        to: usize,
        tag: u64,
        message: B,
    ) -> Result<Work<B>> {
        let messenger = self.messenger()?;
        let mut unsent = UnsentBuffer { buffer: Some(message), work: None, element: PhantomData };
        match self.communicator().start_send(to, tag, &mut unsent, self.options()) {
            StartedSend::Ended(outcome) => Ok(Work::ready(unsent.end(outcome))),
            StartedSend::Pending { needs_drive } => {
                if needs_drive {
                    drop(messenger.submit(drive));
                }
                Ok(self.progressed(unsent.work.ok_or_else(posted_before)?))
            }
        }
    }

    /// Runs [`Comm::recv`] in the background. The handle yields the buffer and the envelope of the
    /// message.
    ///
    /// ```
    /// comm::threads::run(3, |comm| {
    ///     let next = (comm.rank() + 1) % 3;
    ///     let coming = comm.recv_async(comm::Source::Any, 3, vec![0; 10]).unwrap();
    ///     comm.send(next, 3, &[comm.rank() as u32]).unwrap();
    ///     let (buffer, received) = coming.wait().unwrap();
    ///     assert_eq!(received.source, (comm.rank() + 2) % 3);
    ///     assert_eq!(buffer[..received.len], [received.source as u32]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Comm::send_async`].
    pub fn recv_async<T: Element, B: AsMut<[T]> + Send + 'static>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<TagMatch>,
        buffer: B,
    ) -> Result<Work<(B, Received)>> {
        let (work, completer) = Work::new();
        let posted = Posted { buffer, completer, element: PhantomData::<fn() -> T> };
        let messenger = self.messenger()?;
        if self.communicator().post_recv(from.into(), tag.into(), Box::new(posted), self.options()) {
            drop(messenger.submit(drive));
        }
        Ok(self.progressed(work))
    }

    /// Lets threads that wait for a message make progress on messages.
    fn progressed<B>(&self, work: Work<B>) -> Work<B> {
        work.progressed_by(self.communicator().progress())
    }
}

/// Makes progress on messages in the background.
fn drive(comm: &Comm<Host>) -> Result<()> {
    comm.communicator().drive();
    Ok(())
}

/// A buffer to send, and the handle of the operation once it is posted.
struct UnsentBuffer<T, B> {
    buffer: Option<B>,
    work: Option<Work<B>>,
    element: PhantomData<fn() -> T>,
}

impl<T, B> UnsentBuffer<T, B> {
    /// Returns the buffer if the message was sent.
    fn end(self, outcome: Result<()>) -> Result<B> {
        let buffer = self.buffer.ok_or_else(posted_before)?;
        output_of(buffer, outcome, |buffer, ()| buffer)
    }
}

impl<T: Element, B: AsRef<[T]> + Send + 'static> Unsent for UnsentBuffer<T, B> {
    fn view(&self) -> Result<HostView<'_>> {
        let buffer = self.buffer.as_ref().ok_or_else(posted_before)?;
        caught(|| HostView::new(buffer.as_ref()))
    }

    fn post(&mut self) -> Result<Box<dyn Outgoing>> {
        let buffer = self.buffer.take().ok_or_else(posted_before)?;
        let (work, completer) = Work::new();
        self.work = Some(work);
        Ok(Box::new(Posted { buffer, completer, element: self.element }))
    }
}

/// A posted buffer, and the completer of its handle.
struct Posted<T, B, Output> {
    buffer: B,
    completer: Completer<Output>,
    element: PhantomData<fn() -> T>,
}

impl<T: Element, B: AsRef<[T]> + Send> Outgoing for Posted<T, B, B> {
    fn view(&self) -> Result<HostView<'_>> {
        caught(|| HostView::new(self.buffer.as_ref()))
    }

    fn complete(self: Box<Self>, outcome: Result<()>) {
        let Self { buffer, completer, .. } = *self;
        complete(completer, buffer, outcome, |buffer, ()| buffer);
    }
}

impl<T: Element, B: AsMut<[T]> + Send> Incoming for Posted<T, B, (B, Received)> {
    fn view_mut(&mut self) -> Result<HostViewMut<'_>> {
        let buffer = &mut self.buffer;
        caught(move || HostViewMut::new(buffer.as_mut()))
    }

    fn complete(self: Box<Self>, outcome: Result<Received>) {
        let Self { buffer, completer, .. } = *self;
        complete(completer, buffer, outcome, |buffer, received| (buffer, received));
    }
}

/// Completes a handle. Waking the owner runs the owner's code, perhaps on the thread of another
/// call, so a panic of that code is contained here. The panic hook has already reported it.
fn complete<B, R, Output>(
    completer: Completer<Output>,
    buffer: B,
    outcome: Result<R>,
    output: impl FnOnce(B, R) -> Output,
) {
    let outcome = output_of(buffer, outcome, output);
    drop(caught(move || completer.complete(outcome)));
}

/// Returns the output of an operation, or drops its buffer, whose panic is contained, too.
fn output_of<B, R, Output>(
    buffer: B,
    outcome: Result<R>,
    output: impl FnOnce(B, R) -> Output,
) -> Result<Output> {
    match outcome {
        Ok(outcome) => Ok(output(buffer, outcome)),
        Err(error) => {
            drop(caught(move || drop(buffer)));
            Err(error)
        }
    }
}
