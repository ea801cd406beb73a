//! The memory of a bucket, and the collective that averages it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use comm_core::{AsView, AsViewMut, Comm, DType, Erased, Kernels, ReduceOp, Result, Shape};

use crate::Clock;
use crate::hook::{GradBucket, RegisteredHook};
use crate::status::Status;

/// The memory of a bucket: its gradients, then the status of the step if the bucket carries it.
#[derive(Debug)]
pub(crate) struct BucketBuffer<M: Kernels> {
    buffer: M::Buffer,
    /// The number of elements of gradients.
    gradients: usize,
    /// The number of elements of gradients and of zeros that follow them.
    padded: usize,
    /// The number of elements of the status.
    status: usize,
    /// The block of the rank before this one, if this rank gets its averages, too.
    neighbor: Option<M::Buffer>,
}

/// The collective that averages buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BucketCollective {
    /// Every rank gets all averages.
    AllReduce,
    /// Each rank gets the averages of its block. The other blocks are unspecified.
    ReduceScatter {
        /// Whether each rank then sends its averages to the next rank.
        replicates: bool,
    },
}

impl BucketCollective {
    /// Returns whether a rank updates only its block of a bucket.
    pub(crate) const fn is_sharded(self) -> bool {
        matches!(self, Self::ReduceScatter { .. })
    }
}

/// The settings with which a bucket is averaged.
#[derive(Debug)]
pub(crate) struct Launch<M: Kernels> {
    pub(crate) collective: BucketCollective,
    /// The factor of this rank's gradients before they are averaged.
    pub(crate) factor: f64,
    /// Set if gradients of this rank are not finite; `None` if that is not checked.
    pub(crate) found_infinite: Option<Arc<AtomicBool>>,
    /// The status to send with the gradients.
    pub(crate) status: Option<Status>,
    /// The hook that averages the bucket instead, unless the bucket holds only the status.
    pub(crate) hook: Option<BucketHook<M>>,
    pub(crate) clock: Clock,
}

/// A hook and the position of the bucket that it averages.
#[derive(Debug)]
pub(crate) struct BucketHook<M: Kernels> {
    pub(crate) hook: RegisteredHook<M>,
    pub(crate) index: usize,
    pub(crate) is_last: bool,
}

/// A bucket that was averaged, and the times at which the collective ran.
#[derive(Debug)]
pub(crate) struct Completed<M: Kernels> {
    pub(crate) buffer: BucketBuffer<M>,
    pub(crate) started: Instant,
    pub(crate) completed: Instant,
}

impl<M: Kernels> BucketBuffer<M> {
    /// Allocates memory for gradients, and for a status of `status` elements.
    pub(crate) fn new(
        comm: &Comm<M>,
        dtype: DType,
        gradients: usize,
        status: usize,
        collective: BucketCollective,
    ) -> Result<Self> {
        let size = comm.size();
        let (padded, replicates) = match collective {
            BucketCollective::AllReduce => (gradients, false),
            BucketCollective::ReduceScatter { replicates } => {
                (gradients.next_multiple_of(size), replicates && size > 1 && gradients > 0)
            }
        };
        let neighbor = replicates.then(|| M::allocate(comm, dtype, padded / size)).transpose()?;
        Ok(Self { buffer: M::allocate(comm, dtype, padded + status)?, gradients, padded, status, neighbor })
    }

    /// Returns the number of elements of gradients.
    pub(crate) const fn len(&self) -> usize {
        self.gradients
    }

    /// Returns the size of the gradients in bytes.
    pub(crate) fn bytes(&self) -> Result<usize> {
        Ok(self.gradients * self.buffer.as_view()?.dtype().size())
    }

    /// Returns the memory of all gradients.
    pub(crate) fn gradients(&mut self) -> Elements<'_, M> {
        let range = 0..self.gradients;
        self.elements(range)
    }

    /// Returns the averages of the block of the rank before this one, if this rank gets them.
    pub(crate) fn neighbor_mut(&mut self) -> Result<Option<M::ViewMut<'_>>> {
        self.neighbor.as_mut().map(AsViewMut::as_view_mut).transpose()
    }

    /// Returns a range of elements.
    pub(crate) const fn elements(&mut self, range: Range<usize>) -> Elements<'_, M> {
        Elements::new(&mut self.buffer, range)
    }

    /// Returns a range of elements for reading.
    pub(crate) fn view(&self, elements: Range<usize>) -> Result<M::View<'_>> {
        M::get(self.buffer.as_view()?, elements).ok_or_else(outside)
    }

    /// Sends fewer elements of the status from now on.
    pub(crate) const fn shorten_status(&mut self, status: usize) {
        self.status = status;
    }

    /// Reads the bytes of the averaged status, and the type of its elements.
    pub(crate) fn read_status(&self, comm: &Comm<M>) -> Result<(Vec<u8>, DType)> {
        let view = self.view(self.padded..self.padded + self.status)?;
        let dtype = view.dtype();
        let mut bytes = vec![0; self.status * dtype.size()];
        M::read(comm, view, &mut bytes)?;
        Ok((bytes, dtype))
    }

    /// Averages the bucket. Runs on the communication thread.
    pub(crate) fn average(mut self, comm: &Comm<M>, launch: Launch<M>) -> crate::Result<Completed<M>> {
        let started = (launch.clock)();
        if launch.factor == 0.0 {
            // The mean over no samples is NaN, and so is its product with zero.
            M::zero(comm, self.gradients().into_view()?)?;
        } else {
            self.check_and_scale(comm, &launch)?;
        }
        if let Some(mut status) = launch.status {
            // Buckets are averaged one after another, and the status goes with the last.
            status.is_finite = !launch.found_infinite.is_some_and(|found| found.load(Ordering::Relaxed));
            let view = self.elements(self.padded..self.padded + self.status).into_view()?;
            let bytes = status.to_bytes(comm.rank(), comm.size(), view.dtype());
            M::write(comm, view, &bytes)?;
        }
        if let Some(BucketHook { hook, index, is_last }) = launch.hook {
            M::zero(comm, self.elements(self.gradients..self.padded).into_view()?)?;
            hook.average(comm, &mut GradBucket::new(&mut self, index, is_last))?;
        } else if launch.collective.is_sharded() && self.status == 0 {
            M::zero(comm, self.elements(self.gradients..self.padded).into_view()?)?;
            comm.reduce_scatter_in_place(&mut self.elements(0..self.padded), ReduceOp::Avg)?;
        } else {
            let range = 0..self.padded + self.status;
            comm.all_reduce(&mut self.elements(range), ReduceOp::Avg)?;
        }
        self.send_to_neighbor(comm)?;
        Ok(Completed { buffer: self, started, completed: (launch.clock)() })
    }

    /// Sends the averages of this rank's block to the next rank, if each rank gets the averages of
    /// the rank before it.
    fn send_to_neighbor(&mut self, comm: &Comm<M>) -> Result<()> {
        let block = self.block(comm);
        let Some(neighbor) = &mut self.neighbor else { return Ok(()) };
        let (rank, size, len) = (comm.rank(), comm.size(), block.len());
        let (mut send, mut recv) = (vec![0; size], vec![0; size]);
        (send[(rank + 1) % size], recv[(rank + size - 1) % size]) = (len, len);
        comm.all_to_all_v(&Elements::<M>::new(&mut self.buffer, block), &send, &mut Whole(neighbor), &recv)
    }

    /// Records whether gradients are finite, and multiplies them by the factor of this rank.
    fn check_and_scale(&mut self, comm: &Comm<M>, launch: &Launch<M>) -> Result<()> {
        if let Some(found) = &launch.found_infinite
            && !M::is_finite(comm, self.view(0..self.gradients)?)?
        {
            found.store(true, Ordering::Relaxed);
        }
        if launch.factor != 1.0 {
            M::scale(comm, self.gradients().as_view_mut()?, launch.factor)?;
        }
        Ok(())
    }

    /// Gives every rank the blocks of all ranks. Runs on the communication thread.
    pub(crate) fn all_gather(mut self, comm: &Comm<M>, clock: Clock) -> crate::Result<Completed<M>> {
        let started = clock();
        comm.all_gather_in_place(&mut self.elements(0..self.padded))?;
        Ok(Completed { buffer: self, started, completed: clock() })
    }

    /// Returns the elements that [`BucketCollective::ReduceScatter`] leaves on a rank.
    pub(crate) fn block(&self, comm: &Comm<M>) -> Range<usize> {
        let length = self.padded / comm.size();
        length * comm.rank()..length * (comm.rank() + 1)
    }
}

/// A range of elements of a buffer.
#[derive(Debug)]
pub(crate) struct Elements<'b, M: Kernels> {
    buffer: &'b mut M::Buffer,
    range: Range<usize>,
}

impl<'b, M: Kernels> Elements<'b, M> {
    pub(crate) const fn new(buffer: &'b mut M::Buffer, range: Range<usize>) -> Self {
        Self { buffer, range }
    }

    /// Returns the elements for writing.
    pub(crate) fn into_view(self) -> Result<M::ViewMut<'b>> {
        M::get_mut(self.buffer.as_view_mut()?, self.range).ok_or_else(outside)
    }
}

impl<M: Kernels> AsView<M> for Elements<'_, M> {
    type Element = Erased;

    fn as_view(&self) -> Result<M::View<'_>> {
        M::get(self.buffer.as_view()?, self.range.clone()).ok_or_else(outside)
    }
}

impl<M: Kernels> AsViewMut<M> for Elements<'_, M> {
    type Element = Erased;

    fn as_view_mut(&mut self) -> Result<M::ViewMut<'_>> {
        M::get_mut(self.buffer.as_view_mut()?, self.range.clone()).ok_or_else(outside)
    }
}

/// A whole buffer, whose type is known at run time.
struct Whole<'b, M: Kernels>(&'b mut M::Buffer);

impl<M: Kernels> AsViewMut<M> for Whole<'_, M> {
    type Element = Erased;

    fn as_view_mut(&mut self) -> Result<M::ViewMut<'_>> {
        self.0.as_view_mut()
    }
}

fn outside() -> comm_core::Error {
    comm_core::Error::Internal("elements are outside their buffer".into())
}
