//! Sends buckets while backward runs, for buffers in any memory.

use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use comm_core::{AsViewMut, Comm, Host, Memory, ReduceOp, Shape, Work, Worker};

use crate::ready::ReadyQueue;
use crate::{BucketPlan, BucketTimes, Clock, Error, Result, Timeline};

/// Averages buckets over all ranks in the background, in the plan's order.
///
/// This is the part of data-parallel training that does not care where gradients live: `B` is whatever holds a bucket
/// in memory `M`. Filling the buffers is the caller's business, as is that all ranks use the same plan.
/// [`DataParallel`](crate::DataParallel) is the whole, for host memory.
///
/// After an error every call fails with [`Error::Poisoned`].
#[derive(Debug)]
pub struct Reducer<B, M: Memory = Host> {
    worker: Worker<M>,
    plan: BucketPlan,
    queue: ReadyQueue,
    buckets: Vec<Bucket<B>>,
    began: Instant,
    clock: Clock,
    poison: Option<Arc<Error>>,
}

#[derive(Debug)]
struct Bucket<B> {
    place: Place<B>,
    bytes: usize,
    filled: Option<Instant>,
    launched: Option<Instant>,
}

#[derive(Debug)]
enum Place<B> {
    Here(B),
    InFlight(Work<Landed<B>>),
    /// Its collective failed, and the buffer is gone with it.
    Lost,
}

/// A buffer that came back, and when its collective ran.
#[derive(Debug)]
struct Landed<B> {
    buffer: B,
    started: Instant,
    completed: Instant,
}

impl<B, M> Reducer<B, M>
where
    B: AsViewMut<M> + Send + 'static,
    M: Memory,
{
    /// A reducer on its own thread. `allocate` makes the buffer of each bucket.
    ///
    /// From now on the buckets are part of the order of calls on `comm`: no other call on it may be made between the
    /// first bucket of a step and its end.
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
    /// [`Error::Comm`] with the error of `allocate`. The reducer cannot be used any more.
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
        // The old buffers go first: the new ones may need their memory.
        self.buckets.clear();
        let mut bucket = |planned| {
            let mut buffer = allocate(planned)?;
            let view = buffer.as_view_mut()?;
            let bytes = view.len() * view.dtype().size();
            drop(view);
            Ok::<_, Error>(Bucket { place: Place::Here(buffer), bytes, filled: None, launched: None })
        };
        for planned in self.plan.buckets() {
            self.buckets.push(bucket(planned)?);
        }
        Ok(())
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &BucketPlan {
        &self.plan
    }

    /// Which gradients are ready, and what was sent.
    pub(crate) const fn queue(&self) -> &ReadyQueue {
        &self.queue
    }

    /// The buffer of a bucket, unless it is in flight, was lost to an error or does not exist.
    #[must_use]
    pub fn buffer(&self, bucket: usize) -> Option<&B> {
        match &self.buckets.get(bucket)?.place {
            Place::Here(buffer) => Some(buffer),
            Place::InFlight(_) | Place::Lost => None,
        }
    }

    /// The same, to be written.
    #[must_use]
    pub fn buffer_mut(&mut self, bucket: usize) -> Option<&mut B> {
        match &mut self.buckets.get_mut(bucket)?.place {
            Place::Here(buffer) => Some(buffer),
            Place::InFlight(_) | Place::Lost => None,
        }
    }

    /// Starts a step.
    ///
    /// # Errors
    /// [`Error::Abandoned`] if the step before sent buckets but was not finished; [`Error::Poisoned`] after an error.
    pub fn begin(&mut self) -> Result<()> {
        self.check()?;
        if self.buckets.iter().any(|bucket| matches!(bucket.place, Place::InFlight(_))) {
            return Err(self.poison(Error::Abandoned));
        }
        self.queue.reset();
        for bucket in &mut self.buckets {
            (bucket.filled, bucket.launched) = (None, None);
        }
        self.began = (self.clock)();
        Ok(())
    }

    /// Marks the gradient of a slot as ready and sends what can be sent. False, and no change, if it was marked in this
    /// step already or does not exist.
    pub fn mark_ready(&mut self, slot: usize) -> bool {
        let Some(progress) = self.queue.mark(slot) else { return false };
        if let Some(filled) = progress.filled.and_then(|bucket| self.buckets.get_mut(bucket)) {
            filled.filled = Some((self.clock)());
        }
        let released = !progress.released.is_empty();
        self.launch(progress.released);
        if released {
            // Where every core computes, the communication thread would get its turn when this one next waits: after
            // backward. Giving up the core for a moment lets the first bytes leave now. Where a core is free it costs
            // nothing.
            thread::yield_now();
        }
        true
    }

    /// Sends what was not sent yet, full or not, and waits until all buckets are back.
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
            match bucket.land(backward_ended) {
                Ok(landed) => times.push(landed),
                Err(error) => return Err(self.poison(error)),
            }
        }
        Ok(Timeline { began: self.began, backward_ended, finished: (self.clock)(), buckets: times })
    }

    /// Makes every later call fail because of `error`, unless an earlier error already does, and returns it.
    pub fn poison(&mut self, error: Error) -> Error {
        self.poison.get_or_insert_with(|| Arc::new(error.clone()));
        error
    }

    /// Fails if an earlier call failed for good.
    ///
    /// # Errors
    /// [`Error::Poisoned`] with that error.
    pub fn check(&self) -> Result<()> {
        self.poison.as_ref().map_or(Ok(()), |first| Err(Error::Poisoned(Arc::clone(first))))
    }

    fn launch(&mut self, released: Range<usize>) {
        let clock = self.clock;
        for bucket in self.buckets.get_mut(released).into_iter().flatten() {
            match std::mem::replace(&mut bucket.place, Place::Lost) {
                Place::Here(buffer) => {
                    bucket.launched = Some(clock());
                    bucket.place =
                        Place::InFlight(self.worker.submit(move |comm| average(comm, buffer, clock)));
                }
                elsewhere => bucket.place = elsewhere,
            }
        }
    }
}

/// What the communication thread does with a bucket.
fn average<B, M>(comm: &Comm<M>, mut buffer: B, clock: Clock) -> comm_core::Result<Landed<B>>
where
    B: AsViewMut<M>,
    M: Memory,
{
    let started = clock();
    comm.all_reduce(&mut buffer, ReduceOp::Avg)?;
    Ok(Landed { buffer, started, completed: clock() })
}

impl<B> Bucket<B> {
    /// Waits for the buffer and takes it back.
    fn land(&mut self, backward_ended: Instant) -> Result<BucketTimes> {
        let Place::InFlight(work) = std::mem::replace(&mut self.place, Place::Lost) else {
            return Err(comm_core::Error::Internal("a bucket was not sent".into()).into());
        };
        let Landed { buffer, started, completed } = work.wait()?;
        self.place = Place::Here(buffer);
        let filled = self.filled.unwrap_or(backward_ended);
        let launched = self.launched.unwrap_or(backward_ended);
        Ok(BucketTimes { bytes: self.bytes, filled, launched, started, completed })
    }
}
