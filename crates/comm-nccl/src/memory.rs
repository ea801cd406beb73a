//! The memory of CUDA devices.

use comm_core::{CallOptions, Comm, Communicator, Groups, Memory, ReduceOp, Result};

use crate::view::{CudaView, CudaViewMut};
use crate::{Device, DeviceWork, Stream};

/// The memory of CUDA devices. Buffers are [`DeviceBuffer`](crate::DeviceBuffer)s, and parts of
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cuda;

impl Memory for Cuda {
    type Communicator = dyn DeviceCommunicator;
    type View<'a> = CudaView<'a>;
    type ViewMut<'a> = CudaViewMut<'a>;

    fn into_view(buffer: Self::ViewMut<'_>) -> Self::View<'_> {
        buffer.into_read_only()
    }
}

/// The capabilities of every backend for CUDA memory.
pub trait DeviceCommunicator: Communicator<Cuda> + Groups<Cuda> {
    /// Returns the device of this rank.
    fn device(&self) -> &Device;

    /// The stream on which it runs. Work that is enqueued there comes after the calls that were
    /// made before.
    fn stream(&self) -> &Stream;

    /// All calls that were made so far, to be waited for on the device or on the host.
    ///
    /// # Errors
    /// What ended the communicator, if anything did; [`Error::Backend`](comm_core::Error::Backend)
    /// if the device fails.
    fn work(&self) -> Result<DeviceWork>;

    /// Waits on the host until all calls that were made have ended on the device.
    ///
    /// # Errors
    /// What ended the communicator, if anything did.
    fn synchronize(&self) -> Result<()>;

    /// An all-reduce of each buffer, in place: with NCCL, in groups of hundreds, which cost about
    /// as much as one when they are small. Types may differ; all ranks give as many buffers, of the
    /// same lengths and types in the same order. The buffers do not overlap.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`]; if any buffer is refused, nothing was done with any. Each call that
    /// is made has its own deadline.
    fn all_reduce_coalesced(
        &self,
        buffers: Vec<CudaViewMut<'_>>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()>;

    /// A broadcast of each buffer from `root`, as [`DeviceCommunicator::all_reduce_coalesced`].
    ///
    /// # Errors
    /// As [`Comm::broadcast`], and as there.
    fn broadcast_coalesced(
        &self,
        root: usize,
        buffers: Vec<CudaViewMut<'_>>,
        options: &CallOptions,
    ) -> Result<()>;
}

/// Further methods of a handle to a group of ranks with devices.
///
/// ```no_run
/// # fn example(comm: comm_core::Comm<comm_nccl::Cuda>) -> comm_core::Result<()> {
/// use comm_core::ReduceOp;
/// use comm_nccl::{DeviceBuffer, DeviceComm};
///
/// let mut gradients = DeviceBuffer::<f32>::zeros(comm.stream(), 1000)?;
/// comm.all_reduce(&mut gradients, ReduceOp::Avg)?;
/// comm.synchronize()?;
/// # Ok(())
/// # }
/// ```
pub trait DeviceComm {
    /// The device on which the calls run.
    fn device(&self) -> &Device;

    /// The stream on which the calls run. Work that is enqueued there comes after the calls that
    /// were made before.
    fn stream(&self) -> &Stream;

    /// All calls that were made so far, those of other handles to the communicator included, to be
    /// waited for on the device or on the host.
    ///
    /// # Errors
    /// What ended the communicator, if anything did; [`Error::Backend`](comm_core::Error::Backend)
    /// if the device fails.
    fn work(&self) -> Result<DeviceWork>;

    /// Waits on the host until all calls that were made have ended on the device, those of other
    /// handles to the communicator included.
    ///
    /// # Errors
    /// What ended the communicator, if anything did.
    fn synchronize(&self) -> Result<()>;

    /// An all-reduce of each of many buffers; see [`DeviceCommunicator::all_reduce_coalesced`].
    ///
    /// # Errors
    /// As there.
    fn all_reduce_coalesced(&self, buffers: Vec<CudaViewMut<'_>>, op: ReduceOp) -> Result<()>;

    /// A broadcast of each of many buffers from `root`; see
    /// [`DeviceCommunicator::broadcast_coalesced`].
    ///
    /// # Errors
    /// As there.
    fn broadcast_coalesced(&self, root: usize, buffers: Vec<CudaViewMut<'_>>) -> Result<()>;
}

impl DeviceComm for Comm<Cuda> {
    fn device(&self) -> &Device {
        self.communicator().device()
    }

    fn stream(&self) -> &Stream {
        self.communicator().stream()
    }

    fn work(&self) -> Result<DeviceWork> {
        self.communicator().work()
    }

    fn synchronize(&self) -> Result<()> {
        self.communicator().synchronize()
    }

    fn all_reduce_coalesced(&self, buffers: Vec<CudaViewMut<'_>>, op: ReduceOp) -> Result<()> {
        self.communicator().all_reduce_coalesced(buffers, op, self.options())
    }

    fn broadcast_coalesced(&self, root: usize, buffers: Vec<CudaViewMut<'_>>) -> Result<()> {
        self.communicator().broadcast_coalesced(root, buffers, self.options())
    }
}
