//! The connection of a group to the other ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use comm::{CallOptions, Comm, Error, HostCommunicator, Result, Worker};
use pyo3::prelude::*;

use crate::hooks::AbortHooks;
use crate::message::Message;
use crate::operation::Operation;
use crate::pending::Pending;
use crate::queue::{Job, Queue};
use crate::request::{Request, TensorMemory};

/// The connection to the other ranks.
pub(crate) struct Members {
    pub(crate) comm: Comm,
    pub(crate) caller: Arc<Caller>,
    /// `None` once this is dropped.
    workers: Option<Workers>,
    queue: Arc<Queue>,
    /// The number of queued collectives and messages that have not ended.
    pending: Arc<AtomicUsize>,
}

/// Makes collectives, on any thread.
pub(crate) struct Caller {
    communicator: Arc<dyn HostCommunicator>,
    rank: usize,
    pub(crate) hooks: AbortHooks,
}

/// The threads of a group.
struct Workers {
    collectives: Worker,
    messages: Worker,
}

/// The objects of Python that are kept until an operation has ended.
pub(crate) struct Kept {
    /// The tensors that it uses.
    pub(crate) tensors: Py<PyAny>,
    /// A function that copies its results, or None.
    pub(crate) finish: Option<Py<PyAny>>,
}

impl Caller {
    /// Makes a collective. Calls the hooks if the group has failed, before anyone learns of it.
    pub(crate) fn run(&self, request: &Request, timeout: Duration) -> Result<()> {
        let outcome = self.communicator.run(request.call()?, &CallOptions::default().timeout(timeout));
        if outcome.is_err() && self.failure().is_some() {
            self.hooks.call();
        }
        outcome
    }

    /// Returns the error with which the group has failed, if it has, other than by an abort of this
    /// rank. `None` while another thread is in a call.
    pub(crate) fn failure(&self) -> Option<Error> {
        let error = self.communicator.check().err()?;
        let is_own_abort = matches!(error.root_cause(), Error::Aborted { by, .. } if *by == self.rank);
        (!is_own_abort).then_some(error)
    }
}

impl Members {
    pub(crate) fn new(comm: Comm, hooks: AbortHooks) -> Result<Self> {
        let caller = Arc::new(Caller { communicator: comm.shared_communicator(), rank: comm.rank(), hooks });
        let (collectives, messages) = (Worker::new(comm.clone())?, Worker::new(comm.clone())?);
        let workers = Some(Workers { collectives, messages });
        Ok(Self { comm, caller, workers, queue: Arc::new(Queue::new()), pending: Arc::default() })
    }

    fn workers(&self) -> Result<&Workers> {
        self.workers.as_ref().ok_or_else(|| Error::Internal("a group that is dropped is used".into()))
    }

    /// Returns whether a queued collective or a message has not ended.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// Runs a collective on this thread, unless others are pending. Returns whether it has ended.
    pub(crate) fn try_run(&self, request: &Request, timeout: Duration) -> Result<bool> {
        let Some(_turn) = self.queue.try_begin() else { return Ok(false) };
        self.caller.run(request, timeout).map(|()| true)
    }

    /// Queues a collective.
    pub(crate) fn queue(&self, request: Request, timeout: Duration, kept: Kept) -> Result<Operation> {
        let worker = &self.workers()?.collectives;
        if let Err(forked) = self.queue.check_process() {
            let (operation, completion) = Operation::new(None, kept);
            completion.complete(Err(forked), None);
            return Ok(operation);
        }
        // The function may also end an event of the profiler, which is to end on another thread.
        let in_background = kept.finish.is_some();
        let (operation, completion) = Operation::new(Some(Arc::clone(&self.queue)), kept);
        let (caller, pending) = (Arc::clone(&self.caller), Pending::new(&self.pending));
        self.queue.push(Job { caller, request, timeout, completion, pending, in_background });
        let queue = Arc::clone(&self.queue);
        drop(worker.submit(move |_| {
            queue.run_next();
            Ok(())
        }));
        Ok(operation)
    }

    /// Posts a message, and makes sure that a thread moves it.
    pub(crate) fn post(
        &self,
        py: Python<'_>,
        memory: TensorMemory,
        kept: Kept,
        post: impl FnOnce(&Comm, Box<Message>) -> bool + Send,
    ) -> Result<Operation> {
        let worker = &self.workers()?.messages;
        let (operation, mut completion) = Operation::new(None, kept);
        completion.begin();
        // Posting may complete the message, which needs the lock of the interpreter.
        py.detach(|| {
            let pending = Pending::new(&self.pending);
            if post(&self.comm, Box::new(Message { memory, completion, pending })) {
                drop(worker.submit(|comm| {
                    comm.communicator().drive();
                    Ok(())
                }));
            }
            // A thread that waits for an operation does not move its message.
            let progress = self.comm.communicator().progress();
            if let Some(progress) = progress.and_then(|progress| progress.upgrade()) {
                progress.drive_now();
            }
        });
        Ok(operation)
    }
}

/// Leaves the group. The threads need the lock of the interpreter to end, which whoever drops the
/// last handle may hold.
impl Drop for Members {
    fn drop(&mut self) {
        let Self { comm, workers, queue, .. } = self;
        let workers = workers.take();
        Python::attach(|py| {
            py.detach(|| {
                comm.communicator().cancel_recvs();
                drop(workers);
                queue.close();
            });
        });
    }
}
