//! Averages buckets in the background while backward runs, for buffers in any memory.

use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use comm_core::{AsViewMut, Comm, Host, Memory, ReduceOp, Shape, Work, Worker};

use crate::ready::ReadyQueue;
use crate::{BucketPlan, BucketTimes, Clock, Error, Result, Timeline};

/// Averages buckets over all ranks in the background, in the plan's order.
///
/// `B` is the buffer of a bucket in memory `M`. The caller fills the buffers and ensures that all
/// ranks use the same plan. [`DataParallel`](crate::DataParallel) does both for host memory.
///
/// After an error, every call fails with [`Error::Poisoned`].
#[derive(Debug)]
pub struct Reducer<B, M: Memory = Host> {
    worker: Worker<M>,
    plan: BucketPlan,
    queue: ReadyQueue,
    buckets: Vec<ReducerBucket<B>>,
    began: Instant,
    clock: Clock,
    poison: Option<Arc<Error>>,
}

#[derive(Debug)]
struct ReducerBucket<B> {
    state: BucketState<B>,
    bytes: usize,
    filled: Option<Instant>,
    launched: Option<Instant>,
}

#[derive(Debug)]
enum BucketState<B> {
    Idle(B),
    InFlight(Work<Completed<B>>),
    /// Its collective failed and dropped the buffer.
    Lost,
}

/// The buffer of a completed collective, and the times at which that ran.
#[derive(Debug)]
struct Completed<B> {
    buffer: B,
    started: Instant,
    completed: Instant,
}

impl<B, M> Reducer<B, M>
where
    B: AsViewMut<M> + Send + 'static,
    M: Memory,
{
    /// Creates a reducer with its own thread. `allocate` creates the buffer of each bucket.
    ///
    /// The buckets are calls on `comm`: between the first bucket of a step and the end of the step,
    /// the program must make no other call on it.
    ///
    /// # Errors
    /// [`Error::Comm`] if no thread can be started, or with the error of `allocate`.
    pub fn new(
        comm: Comm<M>,
        plan: BucketPlan,
        clock: Clock,
        allocate: impl FnMut(&crate::Bucket) -> comm_core::Result<B>,
    ) -> Result<Self> {
        let mut reducer = Self {
            worker: Worker::new(comm)?,
            queue: ReadyQueue::new(&plan),
            buckets: Vec::new(),
            plan,
            began: clock(),
            clock,
            poison: None,
        };
        reducer.allocate(allocate)?;
        Ok(reducer)
    }

    /// Replaces the plan and all buffers, between two steps.
    ///
    /// # Errors
    /// [`Error::Comm`] with the error of `allocate`. The reducer can then no longer be used.
    pub fn set_plan(
        &mut self,
        plan: BucketPlan,
        allocate: impl FnMut(&crate::Bucket) -> comm_core::Result<B>,
    ) -> Result<()> {
        self.queue = ReadyQueue::new(&plan);
        self.plan = plan;
        self.allocate(allocate).map_err(|error| self.poison(error))
    }

    fn allocate(&mut self, mut allocate: impl FnMut(&crate::Bucket) -> comm_core::Result<B>) -> Result<()> {
        // Free the old buffers first: the new ones may need their memory.
        self.buckets.clear();
        let mut bucket = |planned| {
            let mut buffer = allocate(planned)?;
            let view = buffer.as_view_mut()?;
            let bytes = view.len() * view.dtype().size();
            drop(view);
            Ok::<_, Error>(ReducerBucket {
                state: BucketState::Idle(buffer),
                bytes,
                filled: None,
                launched: None,
            })
        };
        for planned in self.plan.buckets() {
            self.buckets.push(bucket(planned)?);
        }
        Ok(())
    }

    /// Returns the plan.
    #[must_use]
    pub const fn plan(&self) -> &BucketPlan {
        &self.plan
    }

    /// Returns the gradients that are ready and the buckets that were sent.
    pub(crate) const fn queue(&self) -> &ReadyQueue {
        &self.queue
    }

    /// Returns the buffer of a bucket, or `None` if it is in flight, was lost in an error or does
    /// not exist.
    #[must_use]
    pub fn buffer(&self, bucket: usize) -> Option<&B> {
        match &self.buckets.get(bucket)?.state {
            BucketState::Idle(buffer) => Some(buffer),
            BucketState::InFlight(_) | BucketState::Lost => None,
        }
    }

    /// Returns the buffer of a bucket for writing, or `None` as in [`Reducer::buffer`].
    #[must_use]
    pub fn buffer_mut(&mut self, bucket: usize) -> Option<&mut B> {
        match &mut self.buckets.get_mut(bucket)?.state {
            BucketState::Idle(buffer) => Some(buffer),
            BucketState::InFlight(_) | BucketState::Lost => None,
        }
    }

    /// Starts a step.
    ///
    /// # Errors
    /// [`Error::Abandoned`] if the previous step sent buckets but was not finished;
    /// [`Error::Poisoned`] after an error.
    pub fn begin(&mut self) -> Result<()> {
        self.check()?;
        if self.buckets.iter().any(|bucket| matches!(bucket.state, BucketState::InFlight(_))) {
            return Err(self.poison(Error::Abandoned));
        }
        self.queue.reset();
        for bucket in &mut self.buckets {
            (bucket.filled, bucket.launched) = (None, None);
        }
        self.began = (self.clock)();
        Ok(())
    }

    /// Marks the gradient of a slot as ready and sends the buckets that are complete. Returns false
    /// and changes nothing if the slot was already marked in this step or does not exist.
    pub fn mark_ready(&mut self, slot: usize) -> bool {
        let Some(progress) = self.queue.mark(slot) else { return false };
        if let Some(filled) = progress.filled.and_then(|bucket| self.buckets.get_mut(bucket)) {
            filled.filled = Some((self.clock)());
        }
        let released = !progress.released.is_empty();
        self.launch(progress.released);
        if released {
            // If all cores compute, the communication thread would first run when this thread
            // blocks, after backward. Yielding lets it send the first bytes now, and costs nothing
            // if a core is idle.
            thread::yield_now();
        }
        true
    }

    /// Sends the remaining buckets, complete or not, and waits until all buckets are averaged.
    ///
    /// # Errors
    /// The first error of a bucket.
    pub fn finish(&mut self) -> Result<Timeline> {
        self.check()?;
        let backward_ended = (self.clock)();
        let released = self.queue.finish();
        self.launch(released);
        let mut times = Vec::with_capacity(self.buckets.len());
        for bucket in &mut self.buckets {
            match bucket.wait(backward_ended) {
                Ok(bucket_times) => times.push(bucket_times),
                Err(error) => return Err(self.poison(error)),
            }
        }
        Ok(Timeline { began: self.began, backward_ended, finished: (self.clock)(), buckets: times })
    }

    /// Records `error` as the cause for which every later call fails, unless there is an earlier
    /// one, and returns it.
    pub fn poison(&mut self, error: Error) -> Error {
        self.poison.get_or_insert_with(|| Arc::new(error.clone()));
        error
    }

    /// Returns an error if an earlier call failed with a fatal error.
    ///
    /// # Errors
    /// [`Error::Poisoned`] with that error.
    pub fn check(&self) -> Result<()> {
        self.poison.as_ref().map_or(Ok(()), |first| Err(Error::Poisoned(Arc::clone(first))))
    }

    fn launch(&mut self, released: Range<usize>) {
        let clock = self.clock;
        for bucket in self.buckets.get_mut(released).into_iter().flatten() {
            match std::mem::replace(&mut bucket.state, BucketState::Lost) {
                BucketState::Idle(buffer) => {
                    bucket.launched = Some(clock());
                    bucket.state =
                        BucketState::InFlight(self.worker.submit(move |comm| average(comm, buffer, clock)));
                }
                other => bucket.state = other,
            }
        }
    }
}

/// Averages a bucket on the communication thread.
fn average<B, M>(comm: &Comm<M>, mut buffer: B, clock: Clock) -> comm_core::Result<Completed<B>>
where
    B: AsViewMut<M>,
    M: Memory,
{
    let started = clock();
    comm.all_reduce(&mut buffer, ReduceOp::Avg)?;
    Ok(Completed { buffer, started, completed: clock() })
}

impl<B> ReducerBucket<B> {
    /// Waits until the collective has completed and takes the buffer back.
    fn wait(&mut self, backward_ended: Instant) -> Result<BucketTimes> {
        let BucketState::InFlight(work) = std::mem::replace(&mut self.state, BucketState::Lost) else {
            return Err(comm_core::Error::Internal("a bucket was not sent".into()).into());
        };
        let Completed { buffer, started, completed } = work.wait()?;
        self.state = BucketState::Idle(buffer);
        let filled = self.filled.unwrap_or(backward_ended);
        let launched = self.launched.unwrap_or(backward_ended);
        Ok(BucketTimes { bytes: self.bytes, filled, launched, started, completed })
    }
}
