//! Collective communication and data parallel training between processes.
//!
//! A program runs as one process per rank. [`init`] reads the environment, connects to the other
//! ranks and returns a [`Comm`], whose methods are the collectives:
//!
//! ```
//! use comm::ReduceOp;
//!
//! # fn main() -> comm::Result<()> {
//! let comm = comm::init()?;
//! let mut gradients = vec![comm.rank() as f32; 1 << 20];
//! comm.all_reduce(&mut gradients, ReduceOp::Avg)?;
//! # Ok(())
//! # }
//! ```
//!
//! Start the processes with `commctl run -n 4 -- PROGRAM`, torchrun, `mpirun` or `srun`, or by hand
//! with the variables that [`Config::from_env`] lists. A process without these variables is a world
//! of one rank. A [`Config`] sets the same options in code.
//!
//! # Features
//!
//! - `tcp` (default): ranks in different processes, over sockets;
//! - `shm` (default): ranks in different processes of one host, over shared memory;
//! - `hybrid` (default): shared memory within a host and TCP between hosts, which
//!   [`TransportKind::Auto`] then selects; ranks built with and without it connect only if both are
//!   configured to use `tcp` or `shm`;
//! - `ddp` (default): data parallel training, in [`ddp`];
//! - `checkpoint`: checkpoints of training, in the module `checkpoint`;
//! - `objects` (default): collectives of any type that serde can serialize, in [`objects`];
//! - `flight` (default): files with the last calls of each rank after a failure, in [`flight`];
//! - `monitor` (default): ranks answer `commctl top`, in [`monitor`];
//! - `nccl`: collectives on GPU memory, by NCCL or through the host: `init_devices`, and the module
//!   `nccl`. It has been tested on one GPU and on an emulated device;
//! - `tls`: TLS 1.3 for connections over TCP, with `COMM_TLS=1` or `TcpConfig::tls`;
//! - `ndarray`: arrays of ndarray as buffers;
//! - `sim`: ranks as threads of one process, for tests, in the module `threads`.

#![forbid(unsafe_code)]
// docs.rs builds with a nightly compiler, and shows the feature that an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "tcp")]
mod config;
#[cfg(feature = "tcp")]
mod elastic;
#[cfg(feature = "tcp")]
mod env;
#[cfg(feature = "flight")]
pub mod flight;
#[cfg(feature = "tcp")]
mod init;
#[cfg(feature = "tcp")]
mod master;
pub mod metrics;
#[cfg(feature = "monitor")]
pub mod monitor;
#[cfg(feature = "objects")]
pub mod objects;
#[cfg(feature = "tcp")]
mod process_manager;
#[cfg(feature = "sim")]
pub mod threads;

#[cfg(feature = "tcp")]
pub use config::{Config, StoreHost, TransportKind};
#[cfg(feature = "tcp")]
pub use elastic::ElasticGroup;
#[cfg(feature = "hybrid")]
pub use init::init_with_paths;
#[cfg(feature = "tcp")]
pub use init::{init, init_over, init_with};
#[cfg(feature = "nccl")]
pub use init::{init_devices, init_devices_with};
#[cfg(feature = "objects")]
pub use objects::{ObjectCollectives, ObjectError};

pub use comm_core::{
    ANY_TAG, Accumulate, Allocate, Allocation, AsView, AsViewMut, Axis, Buffer, Buffers, Call, CallMetrics,
    CallOptions, CallState, Cart, Collective, Comm, CommRegistry, Communicator, Corruption, Counts,
    DEFAULT_TIMEOUT, DType, Desync, DurationHistogram, During, Element, Erased, Error, Fabric, FlightRecord,
    FlightSink, Group, GroupId, Groups, Host, HostCommunicator, HostView, HostViewMut, Incoming,
    IntegrityCheck, Invalid, LastWill, Lengths, Link, LinkModel, Loss, Membership, Memory, Metrics, Neighbor,
    Observe, ObservedComms, Operator, Outgoing, PROC_NULL, Plain, PlainType, PointToPoint, PrefixStore,
    Presence, Received, RecordedCall, RecordedFailure, RecvFrom, ReduceOp, ReduceOrder, Refusal, Result,
    SendTo, Shape, Shift, ShrinkOptions, Shrunk, Signature, Source, StartedSend, Store, TagMatch, Transport,
    Unsent, UserOp, VariableFault, Work, Worker,
};
#[cfg(feature = "nccl")]
pub use comm_hybrid::{DeviceChoice, DeviceConfig, DevicePath, HybridCommunicator, StagedCommunicator};
#[cfg(feature = "nccl")]
pub use comm_nccl::{Cuda, Device, DeviceBuffer};
pub use comm_ring::{RingCommunicator, RingConfig};

pub use comm_core::{bytemuck, float8, half};

#[cfg(feature = "shm")]
pub use comm_shm::{Heap, HeapUsage};

#[cfg(feature = "tcp")]
pub use comm_tcp::GrowOptions;

/// Collective algorithms, their selection and their execution over a transport.
pub use comm_ring as ring;

/// Data parallel training.
#[cfg(feature = "checkpoint")]
pub use comm_checkpoint as checkpoint;
#[cfg(feature = "ddp")]
pub use comm_ddp as ddp;

/// The transport that uses shared memory within a host and TCP between hosts.
#[cfg(feature = "hybrid")]
pub use comm_hybrid as hybrid;

/// GPU memory and NCCL collectives. NCCL is loaded at run time.
#[cfg(feature = "nccl")]
pub use comm_nccl as nccl;

/// The shared memory transport.
#[cfg(feature = "shm")]
pub use comm_shm as shm;

/// The TCP transport, the store and the rendezvous.
#[cfg(feature = "tcp")]
pub use comm_tcp as tcp;

/// Parts that the launcher of this workspace shares. Not part of the API.
#[cfg(feature = "tcp")]
#[doc(hidden)]
pub mod __private {
    pub use crate::master::Master;
}

/// Compiles the code in the README of this package.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
