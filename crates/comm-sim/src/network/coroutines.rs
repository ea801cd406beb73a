//! Runs ranks as coroutines of one thread.
//!
//! To pass the turn between threads takes microseconds, and a thread has four mappings of memory,
//! of which the kernel allows a process 65,530. To switch between coroutines takes nanoseconds, and
//! a coroutine has two: its stack and a guard page.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, thread};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};

use crate::threads::Job;

/// The size of a stack, the same as a thread's. Only pages that were used take memory.
const STACK_BYTES: usize = 2 << 20;

/// A rank. Its result is an error if it panicked.
type RankCoroutine = Coroutine<(), (), thread::Result<()>>;

thread_local! {
    /// The yielder of the coroutine that this thread runs, or null.
    static RUNNING: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// Runs each job as a coroutine of the calling thread. One runs at a time until it calls
/// [`suspend`] or ends; then `next` returns the index of the next one. Returns the results of all.
pub(super) fn run(jobs: Vec<Job<'_>>, next: impl Fn() -> Option<usize>) -> Vec<thread::Result<()>> {
    let mut results: Vec<thread::Result<()>> = Vec::with_capacity(jobs.len());
    let mut coroutines: Vec<Option<RankCoroutine>> = Vec::with_capacity(jobs.len());
    for job in jobs {
        let stack = DefaultStack::new(STACK_BYTES);
        let failure = stack.as_ref().err().map(|error| format!("cannot allocate its stack: {error}"));
        results.push(Err(Box::new(failure.unwrap_or_else(|| "it did not end".into()))));
        // SAFETY: the coroutine is dropped before this function returns, and what the job borrows
        // outlives the function.
        let start =
            |stack| unsafe { Coroutine::with_stack_unchecked(stack, |yielder, ()| body(yielder, job)) };
        coroutines.push(stack.ok().map(start));
    }
    let mut unfinished = coroutines.iter().flatten().count();
    // The calling thread may run a coroutine of another run.
    let outer = RUNNING.replace(ptr::null());
    while unfinished > 0
        && let Some(index) = next()
    {
        let Some(coroutine) = &mut coroutines[index] else { continue };
        let ended = coroutine.resume(()).as_return();
        RUNNING.set(ptr::null());
        if let Some(result) = ended {
            (results[index], coroutines[index]) = (result, None);
            unfinished -= 1;
        }
    }
    // Those that have not ended unwind, in which they cannot suspend.
    drop(coroutines);
    RUNNING.set(outer);
    results
}

fn body(yielder: &Yielder<(), ()>, job: Job<'_>) -> thread::Result<()> {
    RUNNING.set(yielder);
    catch_unwind(AssertUnwindSafe(job))
}

/// Suspends the coroutine that the calling thread runs, if there is one, until it is resumed.
pub(super) fn suspend() {
    let running = RUNNING.get();
    // SAFETY: it is null, or the yielder of the coroutine that calls this function, which was set
    // when the coroutine started or continued. It exists until the coroutine ends.
    if let Some(yielder) = unsafe { running.as_ref() } {
        yielder.suspend(());
        RUNNING.set(running);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::{Mutex, TryLockError};

    use super::*;

    #[test]
    fn coroutines_run_in_the_given_order_until_they_suspend() {
        let order = RefCell::new(vec![0, 1, 1, 0, 1]);
        let seen = &Mutex::new(Vec::new());
        let job = |index: usize| -> Job<'_> {
            Box::new(move || {
                for step in 0..=index {
                    seen.lock().unwrap().push((index, step));
                    suspend();
                }
            })
        };
        let results = run(vec![job(0), job(1)], || order.borrow_mut().pop());
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(*seen.lock().unwrap(), [(1, 0), (0, 0), (1, 1)]);
    }

    #[test]
    fn a_panic_ends_only_its_coroutine() {
        let jobs: Vec<Job<'_>> = vec![Box::new(|| panic!("first")), Box::new(suspend)];
        let order = RefCell::new(vec![1, 0, 1]);
        let results = run(jobs, || order.borrow_mut().pop());
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true]);
        assert!(!thread::panicking());
    }

    #[test]
    fn a_coroutine_that_never_ends_drops_its_values() {
        let part = &Mutex::new(());
        let job: Job<'_> = Box::new(move || {
            let _held = part.lock();
            suspend();
        });
        let order = RefCell::new(vec![0]);
        assert!(run(vec![job], || order.borrow_mut().pop())[0].is_err());
        assert!(part.try_lock().is_err_and(|error| matches!(error, TryLockError::Poisoned(_))));
    }

    #[test]
    fn a_coroutine_can_run_others() {
        let inner = || {
            let order = RefCell::new(vec![0, 0]);
            assert!(run(vec![Box::new(suspend)], || order.borrow_mut().pop())[0].is_ok());
            suspend();
        };
        let order = RefCell::new(vec![0, 0]);
        assert!(run(vec![Box::new(inner)], || order.borrow_mut().pop())[0].is_ok());
    }
}
