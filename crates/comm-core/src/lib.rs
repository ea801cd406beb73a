//! The core types of the `comm` collective communication library.
//!
//! This crate defines the types and traits that all other crates share, and moves no bytes:
//!
//! - data: [`DType`], [`Element`], [`ReduceOp`] and the reduction kernels ([`Reduction`]);
//! - schedules of collectives: [`Step`], [`Partition`], [`Layout`];
//! - groups and calls: [`Group`], [`Call`], [`Signature`];
//! - the traits between the crates: [`Transport`] (moves bytes), [`Fabric`] (opens transports),
//!   [`Communicator`] (runs collectives), [`Groups`] (creates groups from groups), [`PointToPoint`]
//!   (sends messages), [`Allocate`] (allocates buffers), [`Store`] (rendezvous), [`Memory`] (kinds
//!   of memory), [`Kernels`] (computes in it);
//! - the handles of users: [`Comm`], [`Buffer`], [`Worker`], [`Work`];
//! - errors: [`Error`], and [`Failure`] for objects that threads share;
//! - [`FlightRecord`]: the last calls of a communicator.
//!
//! It opens no sockets, and does not read the environment. The clock is read only in
//! `simulation.rs`, through which the other crates ask for the time, sockets and threads, and get
//! those of a simulation within one. The only file that owns a thread is `worker.rs`.

pub use {bytemuck, float8, half};

mod accumulate;
// Declared first: rustdoc shows the methods of `Comm` in the order of modules.
mod comm;

mod allocation;
mod asynchronous;
mod buffer;
mod call;
mod cart;
mod channel;
mod coalesced;
mod collective;
mod communicator;
mod copy;
mod dtype;
mod error;
mod failure;
mod flight;
mod group;
mod groups;
mod kernels;
mod link;
mod memory;
mod message;
mod metrics;
mod monitored_barrier;
mod notify;
mod op;
mod panics;
mod partition;
mod point_to_point;
mod prefix_store;
mod process;
mod recv_buf;
mod reduce;
mod refusal;
mod registry;
mod scheduler;
mod setters;
mod shrink;
pub mod simulation;
mod split;
mod step;
mod store;
mod sync;
mod transport;
mod variable;
mod view;
mod wait;
pub mod wire;
mod work;
mod worker;

pub use accumulate::Accumulate;
pub use allocation::{Allocate, Allocation};
pub use buffer::Buffer;
pub use call::{Access, Buffers, Call, Counts, InputCopy, Operands, Signature};
pub use cart::{Axis, Cart, Neighbor, PROC_NULL, Shift};
pub use channel::{ChannelId, ChannelKind, Fabric, Until};
pub use collective::Collective;
pub use comm::Comm;
pub use communicator::{CallOptions, Communicator, DEFAULT_TIMEOUT, HostCommunicator, ReduceOrder};
pub use copy::{copy, copy_non_temporal, copy_raw, copy_raw_non_temporal};
pub use dtype::{DType, Element, Plain, PlainType};
pub use error::{Corruption, Desync, During, Error, IntegrityCheck, Invalid, Lengths, Loss, Result};
pub use failure::Failure;
pub use flight::{CallState, FlightRecord, FlightSink, RecordedCall, RecordedFailure};
pub use group::{Group, GroupId, Membership};
pub use groups::Groups;
pub use kernels::{ErasedBuffer, Kernels};
pub use link::{Link, LinkModel};
pub use memory::{Host, HostView, HostViewMut, Memory, Shape};
pub use message::{
    ANY_TAG, Incoming, Outgoing, PointToPoint, Progress, Received, RecvFrom, SendTo, Source, StartedSend,
    TagMatch, Unsent,
};
pub use metrics::{CallMetrics, DurationHistogram, Metrics};
pub use notify::{AbortSignal, Notify};
pub use op::ReduceOp;
pub use partition::{Layout, Partition};
pub use prefix_store::PrefixStore;
pub use process::Process;
pub use recv_buf::RecvBuf;
pub use reduce::{Operator, Reduction, UserOp, Widening};
pub use refusal::Refusal;
pub use registry::{CommRegistry, Observe, ObservedComms};
pub use scheduler::Scheduler;
pub use shrink::{ShrinkOptions, Shrunk};
pub use split::SplitRequest;
pub use step::{Action, Blocks, Place, Step, StepOperand};
pub use store::{LastWill, Presence, Store};
pub use transport::{AbortHandle, Armed, Interest, RegistrationSizes, Transport};
pub use variable::VariableFault;
pub use view::{AsView, AsViewMut, Erased};
pub use wait::{Idle, Waiter};
pub use work::Work;
pub use worker::{Worker, is_unwinding};
