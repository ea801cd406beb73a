//! The memory of CUDA devices.

use comm_core::{CallOptions, Comm, Communicator, Groups, Memory, ReduceOp, Result};

use crate::view::{CudaView, CudaViewMut};
use crate::{Device, DeviceWork, Stream};

/// The memory of CUDA devices. Its buffers are [`DeviceBuffer`](crate::DeviceBuffer)s and slices of
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

    /// Returns the stream of the calls. Work that is enqueued there runs after all earlier calls.
    fn stream(&self) -> &Stream;

    /// Returns a handle to all calls so far, to wait for them on the device or on the host.
    ///
    /// # Errors
    /// The cause of the communicator's failure, if it has failed;
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    fn work(&self) -> Result<DeviceWork>;

    /// Waits on the host until all calls so far have ended on the device.
    ///
    /// # Errors
    /// The cause of the communicator's failure, if it has failed.
    fn synchronize(&self) -> Result<()>;

    /// All-reduces each buffer in place. NCCL runs them in groups of hundreds, which take about as
    /// long as one call if the buffers are small. Types may differ between buffers. All ranks pass
    /// the same number of buffers, with the same lengths and types in the same order. The buffers
    /// do not overlap.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`]. If a buffer is invalid, no buffer is changed. The timeout applies
    /// to each buffer separately.
    fn all_reduce_coalesced(
        &self,
        buffers: Vec<CudaViewMut<'_>>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()>;

    /// Broadcasts each buffer from `root`, as [`DeviceCommunicator::all_reduce_coalesced`].
    ///
    /// # Errors
    /// As [`Comm::broadcast`] and [`DeviceCommunicator::all_reduce_coalesced`].
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
    /// Returns the device of the calls.
    fn device(&self) -> &Device;

    /// Returns the stream of the calls. Work that is enqueued there runs after all earlier calls.
    fn stream(&self) -> &Stream;

    /// Returns a handle to all calls so far, including those made through other handles to the
    /// communicator, to wait for them on the device or on the host.
    ///
    /// # Errors
    /// The cause of the communicator's failure, if it has failed;
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    fn work(&self) -> Result<DeviceWork>;

    /// Waits on the host until all calls so far have ended on the device, including those made
    /// through other handles to the communicator.
    ///
    /// # Errors
    /// The cause of the communicator's failure, if it has failed.
    fn synchronize(&self) -> Result<()>;

    /// All-reduces many buffers; see [`DeviceCommunicator::all_reduce_coalesced`].
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce_coalesced`].
    fn all_reduce_coalesced(&self, buffers: Vec<CudaViewMut<'_>>, op: ReduceOp) -> Result<()>;

    /// Broadcasts many buffers from `root`; see [`DeviceCommunicator::broadcast_coalesced`].
    ///
    /// # Errors
    /// As [`DeviceCommunicator::broadcast_coalesced`].
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
