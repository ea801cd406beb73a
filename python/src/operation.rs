//! Operations that run in the background, as Python sees them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comm::{Error, Result};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::members::Kept;
use crate::queue::{Queue, Turn};

/// The longest wait in one piece, after which signals such as Ctrl-C's are handled.
const TURN: Duration = Duration::from_millis(100);

/// An operation that runs in the background.
#[pyclass(frozen, module = "comm_torch._comm")]
pub(crate) struct Operation {
    shared: Arc<Shared>,
    /// The queue of a collective.
    queue: Option<Arc<Queue>>,
}

/// The other end of an [`Operation`]. If it is dropped, because the operation cannot run, the
/// operation ends with an error.
pub(crate) struct Completion(Option<Ending>);

/// The parts of an end of an operation.
struct Ending {
    shared: Arc<Shared>,
    kept: Kept,
    began: Option<Instant>,
}

struct Shared {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<Result<()>>,
    source: Option<usize>,
    /// When it began and when it ended, if it has done both.
    times: Option<(Instant, Instant)>,
    callbacks: Vec<Py<PyAny>>,
    /// The number of threads that sleep until the operation has ended.
    sleeping: usize,
}

impl Shared {
    /// No operation leaves the state inconsistent, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Operation {
    pub(crate) fn new(queue: Option<Arc<Queue>>, kept: Kept) -> (Self, Completion) {
        let shared = Arc::new(Shared { state: Mutex::default(), done: Condvar::new() });
        let completion = Completion(Some(Ending { shared: Arc::clone(&shared), kept, began: None }));
        (Self { shared, queue }, completion)
    }

    /// Waits for at most this time. Returns whether the operation has ended.
    fn is_done_after(&self, timeout: Duration) -> bool {
        let mut state = self.shared.lock();
        state.sleeping += 1;
        let waited = self.shared.done.wait_timeout_while(state, timeout, |state| state.outcome.is_none());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.sleeping -= 1;
        state.outcome.is_some()
    }

    /// Runs the operation, and those before it, unless another thread does. Returns whether it has
    /// ended.
    fn is_done_by_running(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.run_until(|| self.is_done()))
    }
}

#[pymethods]
impl Operation {
    /// Waits until the operation has ended, and raises its error. Returns False if the time has
    /// passed. `seconds` is None to wait as long as it takes: only then may this thread run a
    /// collective that has not begun, which takes until the deadline of that.
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<bool> {
        let began = Instant::now();
        // A longer time cannot be represented, and is as good as no limit.
        let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        loop {
            let left = timeout.map_or(TURN, |timeout| timeout.saturating_sub(began.elapsed()));
            let is_done =
                || timeout.is_none() && self.is_done_by_running() || self.is_done_after(left.min(TURN));
            if py.detach(is_done) {
                return self.error(py).map_or(Ok(true), Err);
            }
            if left.is_zero() {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }

    fn is_done(&self) -> bool {
        self.shared.lock().outcome.is_some()
    }

    /// Returns the error of an operation that has failed.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        self.error(py)
    }

    /// Returns the rank from which a message was received.
    fn source(&self) -> Option<usize> {
        self.shared.lock().source
    }

    /// Returns the milliseconds from the first beginning to the last end of operations, or None if
    /// one has not ended, or if there are none.
    #[staticmethod]
    fn duration(operations: Vec<PyRef<'_, Self>>) -> Option<f64> {
        let times = operations.iter().map(|operation| operation.shared.lock().times);
        let (began, ended) = times.reduce(|all, times| {
            let ((first, last), (began, ended)) = (all?, times?);
            Some((first.min(began), last.max(ended)))
        })??;
        Some(ended.duration_since(began).as_secs_f64() * 1e3)
    }

    /// Calls `callback` with the error, or None, once the operation has ended: from this thread if
    /// it has already, otherwise from the one on which it ends.
    fn on_done(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        let mut state = self.shared.lock();
        if state.outcome.is_none() {
            state.callbacks.push(callback);
            return Ok(());
        }
        drop(state);
        callback.call1(py, (self.error(py),)).map(drop)
    }
}

impl Operation {
    fn error(&self, py: Python<'_>) -> Option<PyErr> {
        let error = match &self.shared.lock().outcome {
            Some(Err(error)) => error.clone(),
            _ => return None,
        };
        Some(exception(py, &error))
    }
}

impl Completion {
    /// Notes that the operation begins now.
    pub(crate) fn begin(&mut self) {
        if let Some(ending) = &mut self.0 {
            ending.began = Some(Instant::now());
        }
    }

    /// Ends the operation, and wakes those that wait for it. `turn` is that of a collective.
    pub(crate) fn complete(mut self, outcome: Result<Option<usize>>, turn: Option<Turn<'_>>) {
        if let Some(ending) = self.0.take() {
            ending.complete(outcome, turn);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(ending) = self.0.take() {
            let reason = "the operation cannot run: its process was forked, or it panicked";
            ending.complete(Err(Error::Internal(reason.into())), None);
        }
    }
}

impl Ending {
    fn complete(self, outcome: Result<Option<usize>>, mut turn: Option<Turn<'_>>) {
        let Self { shared, kept: Kept { tensors, finish }, began } = self;
        let outcome = match finish {
            Some(finish) if outcome.is_ok() => {
                let finished = Python::attach(|py| finish.call0(py).map(drop));
                let failed = |error: PyErr| Error::Internal(format!("a result could not be copied: {error}"));
                finished.map_err(failed).and(outcome)
            }
            _ => outcome,
        };
        let mut state = shared.lock();
        state.times = began.map(|began| (began, Instant::now()));
        state.source = outcome.as_ref().ok().copied().flatten();
        state.outcome = Some(outcome.as_ref().map(drop).map_err(Clone::clone));
        let callbacks = std::mem::take(&mut state.callbacks);
        let is_awaited = state.sleeping > 0;
        drop(state);
        // Before anyone wakes, who may then make a call on its own thread.
        match &mut turn {
            Some(turn) if !callbacks.is_empty() => turn.begin_callbacks(),
            turn => drop(turn.take()),
        }
        if is_awaited {
            shared.done.notify_all();
        }
        Python::attach(|py| {
            let error = outcome.err().map(|error| exception(py, &error));
            for callback in callbacks {
                let error = error.as_ref().map(|error| error.clone_ref(py));
                if let Err(error) = callback.call1(py, (error,)) {
                    error.write_unraisable(py, None);
                }
            }
            drop(tensors);
        });
    }
}
