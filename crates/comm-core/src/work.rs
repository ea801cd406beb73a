//! A handle to an operation that runs in the background.

use std::future::Future;
use std::pin::Pin;
use std::sync::{PoisonError, Weak};
use std::task::{Context, Poll, Waker};
#[cfg(not(loom))]
use std::time::Duration;

use crate::scheduler::SharedScheduler;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use crate::{Error, Process, Progress, Result};

/// A handle to an operation that runs in the background and owns its buffer until it ends.
///
/// The operation completes whether or not anyone waits for it: dropping the handle neither cancels
/// it nor blocks. The handle can be awaited on any runtime. In a child that is created by `fork`,
/// the operation never completes, and waiting for it is an error.
#[derive(Debug)]
#[must_use = "the buffer comes back through the handle"]
pub struct Work<B> {
    state: HandleState<B>,
    /// The process in which the operation runs.
    process: Process,
    /// The scheduler of the threads of a simulated rank.
    scheduler: Option<SharedScheduler>,
    /// That with which a waiting thread makes progress, if it can.
    progress: Option<Weak<dyn Progress>>,
}

#[derive(Debug)]
enum HandleState<B> {
    /// The operation had ended before there was a handle.
    Ended(EndedOperation<B>),
    Shared(Arc<Shared<B>>),
}

/// The outcome of an operation, which the handle may have taken. The mutex makes the handle `Sync`.
type EndedOperation<B> = Mutex<Option<std::result::Result<B, Box<Error>>>>;

/// The other end of a [`Work`]. If it is dropped without an outcome, the waiter gets an error.
#[derive(Debug)]
pub(crate) struct Completer<B> {
    state: Arc<Shared<B>>,
    is_complete: bool,
}

#[derive(Debug)]
struct Shared<B> {
    slot: Mutex<Slot<B>>,
    done: Condvar,
}

#[derive(Debug)]
struct Slot<B> {
    outcome: Option<Result<B>>,
    done: bool,
    /// Whether a thread waits. To notify none would be a system call, too.
    has_waiter: bool,
    waker: Option<Waker>,
}

impl<B> Shared<B> {
    /// Ignores poisoning: a panic of another holder cannot leave the slot half written.
    fn lock(&self) -> MutexGuard<'_, Slot<B>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> Slot<B> {
    fn take(&mut self) -> Result<B> {
        taken(self.outcome.take())
    }
}

fn take<B>(ended: &mut EndedOperation<B>) -> Result<B> {
    let outcome = ended.get_mut().unwrap_or_else(PoisonError::into_inner).take();
    taken(outcome.map(|outcome| outcome.map_err(|error| *error)))
}

fn taken<B>(outcome: Option<Result<B>>) -> Result<B> {
    outcome.unwrap_or_else(|| Err(Error::Internal("the result of the operation was taken before".into())))
}

impl<B> Work<B> {
    pub(crate) fn new() -> (Self, Completer<B>) {
        let state = Arc::new(Shared {
            slot: Mutex::new(Slot { outcome: None, done: false, has_waiter: false, waker: None }),
            done: Condvar::new(),
        });
        let work = Self::with(HandleState::Shared(Arc::clone(&state)));
        (work, Completer { state, is_complete: false })
    }

    /// Returns the handle of an operation that has ended.
    pub(crate) fn ready(outcome: Result<B>) -> Self {
        Self::with(HandleState::Ended(Mutex::new(Some(outcome.map_err(Box::new)))))
    }

    fn with(state: HandleState<B>) -> Self {
        Self { state, process: Process::current(), scheduler: None, progress: None }
    }

    /// Sets the scheduler of the thread that runs the operation.
    pub(crate) fn scheduled_by(mut self, scheduler: Option<SharedScheduler>) -> Self {
        self.scheduler = scheduler;
        self
    }

    /// Sets that with which waiting threads make progress.
    pub(crate) fn progressed_by(mut self, progress: Option<Weak<dyn Progress>>) -> Self {
        self.progress = progress;
        self
    }

    /// Uses that with which waiting threads make progress, if there is something to make it on.
    fn with_progress(&self, make: impl FnOnce(&dyn Progress)) {
        if let Some(progress) = self.progress.as_ref().and_then(Weak::upgrade) {
            make(&*progress);
        }
    }

    /// Lets another thread make progress, because this one does not.
    fn leave_to_others(&self) {
        self.with_progress(|progress| progress.drive_now());
    }

    fn has_outcome(&self) -> bool {
        match &self.state {
            HandleState::Ended(_) => true,
            HandleState::Shared(shared) => shared.lock().done,
        }
    }

    /// Returns whether the operation has ended, with or without an error.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let is_done = self.has_outcome();
        if !is_done && self.process.is_current() {
            self.leave_to_others();
        }
        is_done
    }

    /// Waits for the operation to end, and returns the buffer.
    ///
    /// # Errors
    /// The operation's error; the buffer is dropped, because its contents are unspecified.
    /// [`Invalid::Forked`](crate::Invalid::Forked) in a child that was forked in the meantime.
    pub fn wait(self) -> Result<B> {
        self.process.check()?;
        if let Some(scheduler) = &self.scheduler {
            scheduler.wait_until(&mut || self.has_outcome())?;
        }
        let shared = match self.state {
            HandleState::Ended(mut outcome) => return take(&mut outcome),
            HandleState::Shared(ref shared) => shared,
        };
        let mut slot = shared.lock();
        if !slot.done {
            drop(slot);
            self.with_progress(|progress| progress.progress_until(&|| self.has_outcome()));
            slot = shared.lock();
        }
        while !slot.done {
            slot.has_waiter = true;
            slot = shared.done.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
        slot.take()
    }

    // Loom does not model time.
    #[cfg(not(loom))]
    /// Waits for the operation to end, for at most `timeout`. If it is still running afterwards,
    /// the handle is returned.
    ///
    /// # Errors
    /// The handle itself if the timeout expires.
    pub fn wait_timeout(self, timeout: Duration) -> std::result::Result<Result<B>, Self> {
        if let Err(error) = self.process.check() {
            return Ok(Err(error));
        }
        self.leave_to_others();
        let shared = match self.state {
            HandleState::Ended(mut outcome) => return Ok(take(&mut outcome)),
            HandleState::Shared(ref shared) => shared,
        };
        let mut slot = shared.lock();
        slot.has_waiter = true;
        let waited = shared.done.wait_timeout_while(slot, timeout, |slot| !slot.done);
        let (mut slot, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if slot.done {
            return Ok(slot.take());
        }
        drop(slot);
        Err(self)
    }
}

impl<B> Future for Work<B> {
    type Output = Result<B>;

    /// Returns an error if it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.process.check() {
            return Poll::Ready(Err(error));
        }
        let shared = match &mut self.state {
            HandleState::Ended(outcome) => return Poll::Ready(take(outcome)),
            HandleState::Shared(shared) => shared,
        };
        let mut slot = shared.lock();
        if slot.done {
            return Poll::Ready(slot.take());
        }
        slot.waker = Some(context.waker().clone());
        drop(slot);
        self.leave_to_others();
        Poll::Pending
    }
}

// The handle is never pinned to its place: nothing refers to the buffer in it.
impl<B> Unpin for Work<B> {}

impl<B> Completer<B> {
    pub(crate) fn complete(mut self, outcome: Result<B>) {
        self.set(outcome);
    }

    fn set(&mut self, outcome: Result<B>) {
        self.is_complete = true;
        let mut slot = self.state.lock();
        slot.outcome = Some(outcome);
        slot.done = true;
        let (has_waiter, waker) = (slot.has_waiter, slot.waker.take());
        drop(slot);
        if has_waiter {
            self.state.done.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<B> Drop for Completer<B> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.set(Err(Error::Internal("the worker ended without finishing the operation".into())));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_returned_until_the_work_is_done() {
        let (work, completer) = Work::new();
        assert!(!work.is_done());
        let work = work.wait_timeout(Duration::from_millis(1)).unwrap_err();
        completer.complete(Ok(5));
        assert!(work.is_done());
        assert_eq!(work.wait_timeout(Duration::ZERO).unwrap().unwrap(), 5);
    }

    #[test]
    fn a_handle_of_an_operation_that_has_ended_has_its_outcome() {
        assert!(Work::ready(Ok(5)).is_done());
        assert_eq!(Work::ready(Ok(5)).wait().unwrap(), 5);
        assert_eq!(Work::ready(Ok(5)).wait_timeout(Duration::ZERO).unwrap().unwrap(), 5);
        assert!(matches!(Work::<()>::ready(Err(Error::Cancelled)).wait(), Err(Error::Cancelled)));
    }

    #[test]
    fn an_outcome_that_was_taken_is_an_error_not_a_hang() {
        let (pending, completer) = Work::new();
        completer.complete(Ok(5));
        for mut work in [pending, Work::ready(Ok(5))] {
            let mut context = Context::from_waker(Waker::noop());
            assert!(matches!(Pin::new(&mut work).poll(&mut context), Poll::Ready(Ok(5))));
            assert!(matches!(Pin::new(&mut work).poll(&mut context), Poll::Ready(Err(Error::Internal(_)))));
            assert!(matches!(work.wait(), Err(Error::Internal(_))));
        }
    }

    #[test]
    fn a_lost_worker_is_an_error_not_a_hang() {
        let (work, completer) = Work::<()>::new();
        drop(completer);
        assert!(matches!(work.wait(), Err(Error::Internal(_))));
    }

    #[test]
    fn work_can_be_awaited() {
        let (mut work, completer) = Work::new();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut work).poll(&mut context).is_pending());
        completer.complete(Ok("done"));
        assert!(matches!(Pin::new(&mut work).poll(&mut context), Poll::Ready(Ok("done"))));
    }
}

/// Tests of every interleaving of two threads that use a handle.
#[cfg(all(test, loom))]
mod interleavings {
    use loom::future::block_on;
    use loom::{model, thread};

    use super::*;

    #[test]
    fn a_waiter_always_gets_the_outcome() {
        model(|| {
            let (work, completer) = Work::new();
            let other = thread::spawn(move || completer.complete(Ok(5)));
            assert_eq!(work.wait().unwrap(), 5);
            other.join().unwrap();
        });
    }

    #[test]
    fn a_waiter_gets_an_error_when_the_worker_is_lost() {
        model(|| {
            let (work, completer) = Work::<()>::new();
            let other = thread::spawn(move || drop(completer));
            assert!(matches!(work.wait(), Err(Error::Internal(_))));
            other.join().unwrap();
        });
    }

    #[test]
    fn a_task_is_always_woken() {
        model(|| {
            let (work, completer) = Work::new();
            let other = thread::spawn(move || completer.complete(Ok(5)));
            assert_eq!(block_on(work).unwrap(), 5);
            other.join().unwrap();
        });
    }

    #[test]
    fn a_handle_that_says_done_has_the_outcome() {
        model(|| {
            let (work, completer) = Work::new();
            let other = thread::spawn(move || completer.complete(Ok(5)));
            if work.is_done() {
                assert_eq!(work.wait().unwrap(), 5);
            }
            other.join().unwrap();
        });
    }

    #[test]
    fn a_handle_may_be_dropped_at_any_time() {
        model(|| {
            let (work, completer) = Work::new();
            let other = thread::spawn(move || completer.complete(Ok(Box::new(5))));
            drop(work);
            other.join().unwrap();
        });
    }
}
