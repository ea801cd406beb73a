//! Averages buckets in the background while backward runs.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Instant;

use comm_core::{Comm, DType, Kernels, Work, Worker};

use crate::bucket_buffer::{BucketBuffer, BucketCollective, BucketHook, Completed, Launch};
use crate::hook::RegisteredHook;
use crate::ready::ReadyQueue;
use crate::status::{GroupStatus, Status, StatusLayout};
use crate::{BucketPlan, BucketTimes, Clock, Error, Location, Result, Timeline};

/// Averages buckets over all ranks in the background, in the plan's order, and exchanges the status
/// of each step.
///
/// After an error, every call fails with [`Error::Poisoned`].
#[derive(Debug)]
pub(crate) struct Reducer<M: Kernels> {
    comm: Comm<M>,
    worker: Worker<M>,
    plan: BucketPlan,
    queue: ReadyQueue,
    /// The buckets of the plan, and an additional one for the status unless the last bucket carries
    /// it. Hooks never see the status, so with a hook there always is an additional one.
    buckets: Vec<ReducerBucket<M>>,
    /// The status of the current step on this rank.
    pub(crate) status: Status,
    collective: BucketCollective,
    hook: Option<RegisteredHook<M>>,
    found_infinite: Option<Arc<AtomicBool>>,
    /// The parameters that this rank uses in every step, by slot, if ranks no longer exchange them.
    expected: Option<Vec<bool>>,
    /// A digest that must be equal on all ranks, if buckets are sharded.
    pub(crate) digest: Option<u32>,
    /// Whether the copy of the state of the rank before this one must be sent again.
    pub(crate) lacks_replica: bool,
    /// The time at which the last status was complete.
    synchronized: Option<Instant>,
    began: Instant,
    clock: Clock,
    poison: Option<Arc<Error>>,
}

#[derive(Debug)]
struct ReducerBucket<M: Kernels> {
    state: BucketState<M>,
    bytes: usize,
    filled: Option<Instant>,
    launched: Option<Instant>,
}

#[derive(Debug)]
enum BucketState<M: Kernels> {
    Idle(BucketBuffer<M>),
    InFlight(Work<Result<Completed<M>>>),
    /// Its collective failed and dropped the buffer.
    Lost,
}

impl<M: Kernels> Reducer<M> {
    /// Creates a reducer with its own thread. The buckets are calls on `comm`: between the first
    /// bucket of a step and the end of the step, the program must not make any other call on it.
    ///
    /// # Errors
    /// [`Error::Comm`] if there is no thread or no memory left.
    pub(crate) fn new(
        comm: &Comm<M>,
        plan: BucketPlan,
        collective: BucketCollective,
        check_finite: bool,
        clock: Clock,
    ) -> Result<Self> {
        let mut reducer = Self {
            comm: comm.clone(),
            worker: Worker::new(comm.clone())?,
            queue: ReadyQueue::new(&plan),
            buckets: Vec::new(),
            plan,
            status: Status::new(1.0, true),
            collective,
            hook: None,
            found_infinite: check_finite.then(Arc::default),
            expected: None,
            digest: None,
            lacks_replica: false,
            synchronized: None,
            began: clock(),
            clock,
            poison: None,
        };
        reducer.allocate()?;
        Ok(reducer)
    }

    /// Replaces the plan and all buffers, between two steps.
    ///
    /// # Errors
    /// [`Error::Comm`] if there is not enough memory. The reducer can then no longer be used.
    pub(crate) fn set_plan(&mut self, plan: BucketPlan) -> Result<()> {
        self.queue = ReadyQueue::new(&plan);
        self.plan = plan;
        self.allocate().map_err(|error| self.poison(error))
    }

    /// Averages buckets by a hook from now on, between two steps.
    ///
    /// # Errors
    /// As [`Reducer::set_plan`].
    pub(crate) fn set_hook(&mut self, hook: RegisteredHook<M>) -> Result<()> {
        self.hook = Some(hook);
        self.allocate().map_err(|error| self.poison(error))
    }

    /// Returns the hook.
    pub(crate) const fn hook(&self) -> Option<&RegisteredHook<M>> {
        self.hook.as_ref()
    }

    fn allocate(&mut self) -> Result<()> {
        // Free the old buffers first: the new ones may need their memory.
        self.buckets.clear();
        let status = self.status_layout().len();
        let (collective, carrier) = (self.collective, self.plan.buckets().len().saturating_sub(1));
        // All gradients are scaled by the mean of weights, so it must not be rounded more than
        // they are.
        let has_f64 = self.plan.buckets().iter().any(|bucket| bucket.dtype() == DType::F64);
        let mut is_carried = false;
        for (number, planned) in self.plan.buckets().iter().enumerate() {
            let fits = planned.dtype() == DType::F64 || planned.dtype() == DType::F32 && !has_f64;
            let carries =
                number == carrier && collective == BucketCollective::AllReduce && self.hook.is_none() && fits;
            is_carried |= carries;
            let status = if carries { status } else { 0 };
            let buffer = BucketBuffer::new(&self.comm, planned.dtype(), planned.len(), status, collective)?;
            self.buckets.push(ReducerBucket::new(buffer)?);
        }
        if !is_carried {
            let buffer = BucketBuffer::new(&self.comm, DType::F64, 0, status, collective)?;
            self.buckets.push(ReducerBucket::new(buffer)?);
        }
        Ok(())
    }

    fn status_layout(&self) -> StatusLayout {
        StatusLayout {
            ranks: self.comm.size(),
            has_digest: self.collective.is_sharded(),
            parameters: if self.expected.is_some() { 0 } else { self.plan.locations().len() },
        }
    }

    /// Stops exchanging the parameters that ranks use in each step. From now on, this rank is
    /// expected to use the same ones as in this step.
    pub(crate) fn fix_used(&mut self) -> Result<()> {
        self.expected = Some(self.status.used.clone());
        let (status, carrier) = (self.status_layout().len(), self.buckets.len().saturating_sub(1));
        self.buffer_mut(carrier)?.shorten_status(status);
        Ok(())
    }

    /// Returns the plan.
    pub(crate) const fn plan(&self) -> &BucketPlan {
        &self.plan
    }

    /// Returns the gradients that are ready and the buckets that were sent.
    pub(crate) const fn queue(&self) -> &ReadyQueue {
        &self.queue
    }

    /// Returns a gradient, or an error if its bucket is in flight or was lost.
    pub(crate) fn view(&self, location: &Location) -> Result<M::View<'_>> {
        match self.buckets.get(location.bucket).map(|bucket| &bucket.state) {
            Some(BucketState::Idle(buffer)) => Ok(buffer.view(location.elements.clone())?),
            _ => Err(Error::Abandoned),
        }
    }

    /// Returns the plan and the memory of a bucket.
    pub(crate) fn plan_and_buffer_mut(
        &mut self,
        bucket: usize,
    ) -> Result<(&BucketPlan, &mut BucketBuffer<M>)> {
        match self.buckets.get_mut(bucket).map(|bucket| &mut bucket.state) {
            Some(BucketState::Idle(buffer)) => Ok((&self.plan, buffer)),
            _ => Err(Error::Abandoned),
        }
    }

    /// Returns the memory of a bucket, or an error if it is in flight or was lost.
    pub(crate) fn buffer_mut(&mut self, bucket: usize) -> Result<&mut BucketBuffer<M>> {
        self.plan_and_buffer_mut(bucket).map(|(_, buffer)| buffer)
    }

    /// Starts a step with the status of this rank, whose [`Status::used`] is set while it runs.
    ///
    /// # Errors
    /// [`Error::Abandoned`] if the previous step sent buckets but was not finished;
    /// [`Error::Poisoned`] after an error.
    pub(crate) fn begin(&mut self, status: Status) -> Result<()> {
        self.check()?;
        if self.buckets.iter().any(|bucket| matches!(bucket.state, BucketState::InFlight(_))) {
            return Err(self.poison(Error::Abandoned));
        }
        self.queue.reset();
        self.status = status;
        self.status.used.resize(self.plan.locations().len(), false);
        self.found_infinite = self.found_infinite.is_some().then(Arc::default);
        for bucket in &mut self.buckets {
            (bucket.filled, bucket.launched) = (None, None);
        }
        self.began = (self.clock)();
        Ok(())
    }

    /// Marks the gradient of a slot as ready and sends the buckets that are complete. Does nothing
    /// if the slot was already marked in this step or does not exist.
    pub(crate) fn mark_ready(&mut self, slot: usize) {
        let Some(progress) = self.queue.mark(slot) else { return };
        if let Some(filled) = progress.filled.and_then(|bucket| self.buckets.get_mut(bucket)) {
            filled.filled = Some((self.clock)());
        }
        let released = !progress.released.is_empty();
        self.launch(progress.released);
        if released {
            // If all cores are busy, the communication thread would not run until this thread
            // blocks, after backward. Yielding lets it send the first bytes now, and costs nothing
            // if a core is idle.
            thread::yield_now();
        }
    }

    /// Sends the remaining buckets, complete or not, and waits until all buckets are averaged.
    ///
    /// # Errors
    /// The first error of a bucket.
    pub(crate) fn finish(&mut self) -> Result<(Timeline, GroupStatus)> {
        self.check()?;
        let backward_ended = (self.clock)();
        let released = self.queue.finish();
        // The status goes with the last bucket, or after it.
        self.launch(released.start..self.buckets.len());
        let mut times = Vec::with_capacity(self.buckets.len());
        for bucket in &mut self.buckets {
            match bucket.wait(backward_ended) {
                Ok(bucket_times) => times.push(bucket_times),
                Err(error) => return Err(self.poison(error)),
            }
        }
        self.synchronized = times.last().map(|status| status.completed);
        times.truncate(self.plan.buckets().len());
        let status = self.group_status().map_err(|error| self.poison(error))?;
        let finished = (self.clock)();
        Ok((Timeline { began: self.began, backward_ended, finished, buckets: times }, status))
    }

    fn group_status(&mut self) -> Result<GroupStatus> {
        let layout = self.status_layout();
        let comm = self.comm.clone();
        let carrier = self.buckets.len().saturating_sub(1);
        let (bytes, dtype) = self.buffer_mut(carrier)?.read_status(&comm)?;
        Ok(GroupStatus::from_bytes(&bytes, dtype, layout))
    }

    /// Multiplies all averaged gradients by a factor.
    ///
    /// # Errors
    /// [`Error::Comm`] with the error of a device.
    pub(crate) fn scale(&mut self, factor: f64) -> Result<()> {
        let comm = self.comm.clone();
        for bucket in 0..self.plan.buckets().len() {
            let buffer = self.buffer_mut(bucket)?;
            M::scale(&comm, buffer.gradients().into_view()?, factor)?;
            if let Some(neighbor) = buffer.neighbor_mut()? {
                M::scale(&comm, neighbor, factor)?;
            }
        }
        Ok(())
    }

    /// Gives every rank the blocks of all ranks of a bucket, in the background.
    pub(crate) fn share(&mut self, bucket: usize) {
        let clock = self.clock;
        let Some(bucket) = self.buckets.get_mut(bucket) else { return };
        match std::mem::replace(&mut bucket.state, BucketState::Lost) {
            BucketState::Idle(buffer) => {
                let work = self.worker.submit(move |comm| Ok(buffer.all_gather(comm, clock)));
                bucket.state = BucketState::InFlight(work);
            }
            other => bucket.state = other,
        }
    }

    /// Waits until a bucket has the blocks of all ranks.
    ///
    /// # Errors
    /// [`Error::Comm`].
    pub(crate) fn wait_shared(&mut self, bucket: usize) -> Result<()> {
        let now = (self.clock)();
        let waited = self.buckets.get_mut(bucket).map_or(Ok(()), |bucket| bucket.wait(now).map(drop));
        waited.map_err(|error| self.poison(error))
    }

    /// Records `error` as the reason every later call fails, unless there is an earlier one, and
    /// returns it.
    pub(crate) fn poison(&mut self, error: Error) -> Error {
        self.poison.get_or_insert_with(|| Arc::new(error.clone()));
        error
    }

    /// Returns an error if an earlier call failed with a fatal error.
    ///
    /// # Errors
    /// [`Error::Poisoned`] with that error.
    pub(crate) fn check(&self) -> Result<()> {
        self.poison.as_ref().map_or(Ok(()), |first| Err(Error::Poisoned(Arc::clone(first))))
    }

    /// Sends buckets. The last one carries the status.
    fn launch(&mut self, released: Range<usize>) {
        let (clock, collective, carrier) = (self.clock, self.collective, self.buckets.len() - 1);
        let planned = self.plan.buckets().len();
        for number in released {
            let status = (number == carrier).then(|| self.status_to_send());
            let hook = |hook| BucketHook { hook, index: number, is_last: number + 1 == planned };
            let bucket = &mut self.buckets[number];
            match std::mem::replace(&mut bucket.state, BucketState::Lost) {
                BucketState::Idle(buffer) => {
                    bucket.launched = Some(clock());
                    let launch = Launch {
                        collective,
                        factor: self.status.weight,
                        found_infinite: self.found_infinite.clone(),
                        status,
                        hook: self.hook.clone().filter(|_| number < planned).map(hook),
                        clock,
                    };
                    let work = self.worker.submit(move |comm| Ok(buffer.average(comm, launch)));
                    bucket.state = BucketState::InFlight(work);
                }
                other => bucket.state = other,
            }
        }
    }

    /// Returns the status of this rank, which is sent with the last bucket, when all gradients are
    /// ready.
    fn status_to_send(&self) -> Status {
        let mut status = self.status.clone();
        status.lacks_replica = self.lacks_replica;
        if self.collective.is_sharded() {
            status.digest = Some(self.digest.unwrap_or_default());
        }
        let since = |synchronized| (self.clock)().saturating_duration_since(synchronized);
        status.time = self.synchronized.map(since).unwrap_or_default();
        if let Some(expected) = &self.expected {
            status.deviates = status.is_active && status.used != *expected;
            status.used.clear();
        }
        status
    }
}

impl<M: Kernels> ReducerBucket<M> {
    fn new(buffer: BucketBuffer<M>) -> Result<Self> {
        let bytes = buffer.bytes()?;
        Ok(Self { state: BucketState::Idle(buffer), bytes, filled: None, launched: None })
    }

    /// Waits until the collective has completed and takes the buffer back.
    fn wait(&mut self, backward_ended: Instant) -> Result<BucketTimes> {
        let BucketState::InFlight(work) = std::mem::replace(&mut self.state, BucketState::Lost) else {
            return Err(comm_core::Error::Internal("a bucket was not sent".into()).into());
        };
        let Completed { buffer, started, completed } = work.wait()??;
        self.state = BucketState::Idle(buffer);
        let filled = self.filled.unwrap_or(backward_ended);
        let launched = self.launched.unwrap_or(backward_ended);
        Ok(BucketTimes { bytes: self.bytes, filled, launched, started, completed })
    }
}
