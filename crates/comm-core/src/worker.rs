//! Collectives in the background. This is the only file of the crate that owns a thread.

use std::thread;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, never, select_biased, unbounded};

use crate::panics::caught;
use crate::scheduler::{EndOfTurns, Turns};
use crate::wait::run_in_background;
use crate::{Comm, Communicator as _, Error, Host, Memory, Process, Result, Work};

/// An operation to run, or to end with the error that cancelled the worker.
type Job<M> = Box<dyn FnOnce(Result<&Comm<M>>) + Send>;

/// Runs operations on a communicator in the background, in the order in which they were submitted.
///
/// Ranks must submit the same collectives in the same order, as with direct calls. Dropping the
/// worker waits for all submitted operations, unless it is dropped on its own thread, by an
/// operation that owned the last handle. If it is dropped during a panic, it first aborts the
/// communicator.
///
/// The thread does not exist in a child created by `fork`. In the child, submitted operations end
/// with [`Invalid::Forked`](crate::Invalid::Forked), and dropping the worker does nothing.
#[derive(Debug)]
pub struct Worker<M: Memory = Host> {
    comm: Comm<M>,
    /// Called on `comm` when the last handle is dropped, before waiting for the rest of the queue.
    on_drop: fn(&Comm<M>),
    jobs: Option<Sender<Job<M>>>,
    cancel: Sender<Error>,
    thread: Option<thread::JoinHandle<()>>,
    /// The process to which the thread belongs.
    process: Process,
    /// The end of the thread in a simulation.
    end: Option<EndOfTurns>,
}

impl<M: Memory> Worker<M> {
    /// Starts a thread that runs operations on `comm`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system cannot start a thread.
    pub fn new(comm: Comm<M>) -> Result<Self> {
        let comm = comm.in_foreground();
        let (jobs, queue) = unbounded();
        let (cancel, cancelled) = bounded(1);
        let own = comm.clone();
        let turns = comm.communicator().scheduler().map(Turns::new);
        let end = turns.as_ref().map(Turns::end);
        let thread = thread::Builder::new()
            .name("comm-worker".into())
            .spawn(move || run(&own, &queue, cancelled, turns))
            .map_err(|source| Error::io("start a worker thread", source))?;
        let (jobs, thread, process) = (Some(jobs), Some(thread), Process::current());
        Ok(Self { comm, on_drop: |_| {}, jobs, cancel, thread, process, end })
    }

    /// Sets a function that is called on the communicator when the worker is dropped, before it
    /// waits for the queue.
    pub(crate) fn on_drop(self, on_drop: fn(&Comm<M>)) -> Self {
        let mut worker = self;
        worker.on_drop = on_drop;
        worker
    }

    /// Queues an operation. It runs after everything that was submitted before, whether or not the
    /// handle is kept. If it panics, its handle yields [`Error::Panicked`] and the communicator is
    /// aborted, because other ranks may be in a call that the operation was supposed to make.
    pub fn submit<B, F>(&self, operation: F) -> Work<B>
    where
        B: Send + 'static,
        F: FnOnce(&Comm<M>) -> Result<B> + Send + 'static,
    {
        let (work, completer) = Work::new();
        let work = work.scheduled_by(self.end.as_ref().map(EndOfTurns::scheduler));
        if let Err(error) = self.process.check() {
            completer.complete(Err(error));
            return work;
        }
        let job: Job<M> = Box::new(move |comm| {
            let outcome = comm.and_then(|comm| {
                caught(|| operation(comm)).unwrap_or_else(|panicked| {
                    comm.abort(&panicked.to_string());
                    Err(panicked)
                })
            });
            completer.complete(outcome);
        });
        if let Some(jobs) = &self.jobs {
            // A send fails only if the thread is gone; then the job is dropped, which completes the
            // work with an error.
            let _ = jobs.send(job);
        }
        work
    }

    /// Ends the operations that have not begun, and those that are submitted from now on, with this
    /// error. Only the first error is kept.
    pub(crate) fn cancel(&self, cause: Error) {
        // The channel holds one cause; a second one is ignored.
        let _ = self.cancel.try_send(cause);
    }
}

/// Runs operations until the worker is dropped and its queue is empty.
fn run<M: Memory>(
    comm: &Comm<M>,
    queue: &Receiver<Job<M>>,
    mut cancelled: Receiver<Error>,
    turns: Option<Turns>,
) {
    run_in_background();
    if let Some(turns) = &turns {
        turns.begin();
    }
    let mut cause = None;
    loop {
        let next = match &turns {
            None => Ok(next(queue, &cancelled)),
            Some(turns) => turns.wait_for(|| try_next(queue, &cancelled)),
        };
        match next {
            Ok(Next::Cancel(error)) => {
                cause = cause.or(error);
                cancelled = never();
            }
            Ok(Next::Run(job)) => job(cause.clone().map_or(Ok(comm), Err)),
            Ok(Next::End) | Err(_) => return,
        }
    }
}

/// The next thing that a worker does.
enum Next<M: Memory> {
    /// End the operations that have not begun, if there is a cause.
    Cancel(Option<Error>),
    Run(Job<M>),
    End,
}

/// Waits for the next thing to do.
fn next<M: Memory>(queue: &Receiver<Job<M>>, cancelled: &Receiver<Error>) -> Next<M> {
    select_biased! {
        recv(cancelled) -> error => Next::Cancel(error.ok()),
        recv(queue) -> job => job.map_or(Next::End, Next::Run),
    }
}

/// Returns the next thing to do, if there is one. A `Select` that does not wait would yield several
/// times before it says so.
fn try_next<M: Memory>(queue: &Receiver<Job<M>>, cancelled: &Receiver<Error>) -> Option<Next<M>> {
    match cancelled.try_recv() {
        Ok(error) => return Some(Next::Cancel(Some(error))),
        Err(TryRecvError::Disconnected) => return Some(Next::Cancel(None)),
        Err(TryRecvError::Empty) => {}
    }
    match queue.try_recv() {
        Ok(job) => Some(Next::Run(job)),
        Err(TryRecvError::Disconnected) => Some(Next::End),
        Err(TryRecvError::Empty) => None,
    }
}

/// Returns whether this thread is unwinding after a panic. A communicator that is dropped then does
/// not leave its group in order.
#[must_use]
pub fn is_unwinding() -> bool {
    thread::panicking()
}

impl<M: Memory> Drop for Worker<M> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The thread does not exist in this process, but may have locked the queue when the
            // process forked.
            std::mem::forget((self.jobs.take(), self.thread.take()));
            return;
        }
        if is_unwinding() {
            self.comm.abort("its thread panicked");
        }
        (self.on_drop)(&self.comm);
        self.jobs = None;
        let own = thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != own) {
            if let Some(end) = &self.end {
                end.wait();
            }
            // Operations catch their panics, so the result carries no information.
            let _ = thread.join();
        }
    }
}
