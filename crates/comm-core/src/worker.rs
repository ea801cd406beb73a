//! Collectives in the background: the one file of this crate that owns a thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use crate::{Comm, Error, Host, Memory, Result, Work};

type Job<M> = Box<dyn FnOnce(&Comm<M>) + Send>;

/// Runs operations on a communicator in the background, first in, first out.
///
/// Ranks must submit the same collectives in the same order, as with direct calls. Dropping the worker lets the
/// operations that were submitted complete, and waits for them.
#[derive(Debug)]
pub struct Worker<M: Memory = Host> {
    jobs: Option<mpsc::Sender<Job<M>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<M: Memory> Worker<M> {
    /// Starts a thread that runs operations on `comm`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no thread left.
    pub fn new(comm: Comm<M>) -> Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job<M>>();
        let thread = thread::Builder::new()
            .name("comm-worker".into())
            .spawn(move || queue.into_iter().for_each(|job| job(&comm)))
            .map_err(|source| Error::io("start a worker thread", source))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues an operation. It runs after everything that was submitted before, whether or not the handle is kept.
    /// If it panics, its handle yields [`Error::Internal`] and the worker goes on.
    pub fn submit<B, F>(&self, operation: F) -> Work<B>
    where
        B: Send + 'static,
        F: FnOnce(&Comm<M>) -> Result<B> + Send + 'static,
    {
        let (work, completer) = Work::new();
        let job: Job<M> = Box::new(move |comm| {
            // The operation is consumed by its call, so nothing that it broke is seen again.
            let outcome = catch_unwind(AssertUnwindSafe(|| operation(comm)));
            completer
                .complete(outcome.unwrap_or_else(|_| Err(Error::Internal("the operation panicked".into()))));
        });
        if let Some(jobs) = &self.jobs {
            // A send fails only if the thread is gone; then the job is dropped, which completes the work with an error.
            let _ = jobs.send(job);
        }
        work
    }
}

/// Returns true while this thread unwinds after a panic: a communicator that is dropped now does not leave in order.
#[must_use]
pub fn is_unwinding() -> bool {
    thread::panicking()
}

impl<M: Memory> Drop for Worker<M> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Operations catch their panics, so there is nothing to learn from the result.
            let _ = thread.join();
        }
    }
}
