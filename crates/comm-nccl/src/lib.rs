//! GPU memory and NCCL collectives of the comm collective communication library.
//!
//! [`NcclCommunicator`] is a [`Communicator`](comm_core::Communicator) for buffers on CUDA devices,
//! whose collectives are NCCL's. Neither CUDA nor NCCL is needed to build; both are loaded when a
//! program asks for them. Where one is missing, that is
//! [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable), with what was tried.
//!
//! - A [`Device`] has [`Stream`]s and [`DeviceBuffer`]s. A buffer knows which streams used it last,
//!   so that work on it comes in the order in which it was enqueued, whoever enqueues it. Memory of
//!   frameworks comes in by [`CudaView::from_raw`].
//! - A [`Library`] is the loaded NCCL.
//! - The ranks of any communicator for the host connect with [`NcclCommunicator::connect`], and
//!   those that were given a [`UniqueId`] in another way with [`NcclCommunicator::with_id`].
//!
//! Everything is checked before NCCL is called: lengths, types, operators, devices and roots. What
//! takes longer than its deadline, or fails in the background, is aborted by a watchdog, a thread
//! of each communicator's own, which also tells the other ranks and hears from them, over a
//! communicator for the host.
//!
//! | question | file |
//! |---|---|
//! | is there a driver, which device is mine | `probe.rs`, `device.rs`, `environment.rs` |
//! | where is memory allocated, copied and freed | `allocation.rs`, `buffer.rs`, `slice.rs` |
//! | which memory of the host does a device copy to and from by itself | `pinned.rs`, `transfer.rs` |
//! | who waits for whom | `usage.rs`, `stream.rs`, `work.rs` |
//! | what does a call see of a buffer | `view.rs`, `memory.rs` |
//! | how do ranks get one id, and which are refused | `capabilities.rs`, `unique_id.rs` |
//! | what does a call come to, and what is refused | `plan/`, `dtype.rs` |
//! | which calls of NCCL are made | `handle/`, `library.rs` |
//! | what is under way, and what if it fails | `communicator/engine.rs`, `communicator/state.rs`, `health.rs` |
//! | who notices, and who tells the others | `communicator/watch.rs`, `communicator/control.rs` |
//! | who goes on afterwards | `communicator/shrink.rs` |
//! | what do users hold | `communicator/`, `config.rs` |
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
mod dtype;
mod environment;
mod error;
mod handle;
mod health;
mod library;
mod memory;
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
pub use library::Library;
pub use memory::{Cuda, DeviceComm, DeviceCommunicator};
pub use nccl_sys::{Search, Version};
pub use pinned::PinnedBuffer;
pub use slice::{DeviceSlice, DeviceSliceMut};
pub use stream::Stream;
pub use transfer::{CopyStreams, Part, Transfer};
pub use unique_id::UniqueId;
pub use view::{CudaView, CudaViewMut};
pub use work::DeviceWork;
