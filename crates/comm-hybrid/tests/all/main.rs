//! Tests of ranks on several hosts and with devices, in one program, because it takes less time to
//! build than one per file.

mod collectives;
mod common;
mod conformance;
#[cfg(feature = "nccl")]
mod device;
#[cfg(feature = "nccl")]
mod devices;
mod fabric;
#[cfg(feature = "nccl")]
mod staged_conformance;
#[cfg(feature = "nccl")]
mod staged_failures;
#[cfg(feature = "nccl")]
mod staged_reductions;
#[cfg(feature = "nccl")]
mod training;
