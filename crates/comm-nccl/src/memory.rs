//! The memory of CUDA devices.

use comm_core::{Communicator, Groups, Memory};

use crate::view::{CudaView, CudaViewMut};

/// The memory of CUDA devices. Buffers are [`DeviceBuffer`](crate::DeviceBuffer)s, and parts of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cuda;

impl Memory for Cuda {
    type Communicator = dyn DeviceCommunicator;
    type View<'a> = CudaView<'a>;
    type ViewMut<'a> = CudaViewMut<'a>;
}

/// What every backend for the memory of CUDA devices can do.
pub trait DeviceCommunicator: Communicator<Cuda> + Groups<Cuda> {}

impl<C> DeviceCommunicator for C where C: Communicator<Cuda> + Groups<Cuda> + ?Sized {}
