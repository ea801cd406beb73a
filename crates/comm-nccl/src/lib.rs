//! GPU memory and NCCL collectives of the comm collective communication library.
//!
//! [`NcclCommunicator`] is a [`Communicator`](comm_core::Communicator) for buffers on CUDA devices,
//! which runs collectives with NCCL. Building needs neither CUDA nor NCCL; both are loaded when a
//! program first uses them. If one is missing, calls return
//! [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable) with the paths that were
//! tried.
//!
//! - A [`Device`] has [`Stream`]s and [`DeviceBuffer`]s. A buffer records its last uses, so that
//!   work on it runs in the order in which it was enqueued, on any stream. [`CudaView::from_raw`]
//!   makes a view of a framework's memory.
//! - [`Cuda`] has [`Kernels`](comm_core::Kernels), so data parallel training computes on devices
//!   as on the host, with the same bits. The driver compiles the kernels from PTX.
//! - A [`Library`] is the loaded NCCL.
//! - [`NcclCommunicator::connect`] connects the ranks of any host communicator, and
//!   [`NcclCommunicator::with_id`] ranks that got a [`UniqueId`] in another way.
//!
//! Lengths, types, operators, devices and roots are checked before NCCL is called. A watchdog, one
//! thread per communicator, aborts calls that exceed their deadline or fail in the background. It
//! also exchanges failures with the other ranks over a host communicator.
//!
//! | part | file |
//! |---|---|
//! | the driver and devices | `probe.rs`, `device.rs`, `environment.rs` |
//! | allocation, copies and release of memory | `allocation.rs`, `buffer.rs`, `slice.rs` |
//! | pinned memory of the host | `pinned.rs`, `transfer.rs` |
//! | the order of uses of memory | `usage.rs`, `stream.rs`, `work.rs` |
//! | views of buffers | `view.rs`, `memory.rs` |
//! | computations on buffers, as kernels in PTX | `kernels/` |
//! | the comparison of ranks, and the unique id | `capabilities.rs`, `unique_id.rs` |
//! | the checks of a call, and its NCCL calls as data | `plan/`, `dtype.rs` |
//! | the calls into NCCL | `handle/`, `library.rs` |
//! | calls in flight, and their failures | `communicator/engine.rs`, `communicator/state.rs`, `health.rs` |
//! | detection and exchange of failures | `communicator/watch.rs`, `communicator/control.rs` |
//! | the remaining ranks after a failure | `communicator/shrink.rs`, `communicator/survivors.rs` |
//! | the interface | `communicator/`, `config.rs` |
//!
//! # Example
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use comm_core::{Comm, HostCommunicator, Membership, ReduceOp};
//! use comm_nccl::{Cuda, Device, DeviceBuffer, Library, NcclCommunicator, NcclConfig};
//!
//! fn sum(host: &dyn HostCommunicator) -> comm_core::Result<Vec<f32>> {
//!     let device = Device::from_env()?;
//!     let (rank, size) = (host.group().rank(), host.group().size());
//!     let config = NcclConfig::new(Membership { rank, size })?;
//!     let communicator = NcclCommunicator::connect(&Library::from_env()?, &device, host, config)?;
//!     let comm = Comm::<Cuda>::over(Arc::new(communicator));
//!
//!     let mut buffer = DeviceBuffer::from_host(&device.new_stream()?, &[1.0_f32; 1000])?;
//!     comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
//!     buffer.to_vec()
//! }
//! ```
#![deny(unsafe_code)]

mod allocation;
mod buffer;
mod capabilities;
mod communicator;
mod config;
mod device;
mod driver;
mod dtype;
mod environment;
mod error;
mod handle;
mod health;
mod kernels;
mod library;
mod memory;
mod pause;
mod pinned;
mod plan;
mod probe;
mod slice;
mod stream;
mod sync;
mod transfer;
mod unique_id;
mod usage;
mod view;
mod work;

pub use buffer::DeviceBuffer;
pub use capabilities::Capabilities;
pub use communicator::{Batch, NcclCommunicator, Registration, ShrinkMode};
pub use config::NcclConfig;
pub use device::Device;
pub use driver::Driver;
pub use kernels::ErasedDeviceBuffer;
pub use library::Library;
pub use memory::{Cuda, DeviceComm, DeviceCommunicator};
pub use nccl_sys::{Search, Version};
pub use pinned::PinnedBuffer;
pub use slice::{DeviceSlice, DeviceSliceMut};
pub use stream::Stream;
pub use transfer::{CopyRegion, CopyStreams, Transfer};
pub use unique_id::UniqueId;
pub use view::{CudaView, CudaViewMut};
pub use work::DeviceWork;
