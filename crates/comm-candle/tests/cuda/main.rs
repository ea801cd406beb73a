//! Tests of gradients and variables on CUDA devices, which need a device and NCCL.
#![allow(clippy::unwrap_used, clippy::panic)]

mod gradients;
mod host_only;
mod order;
mod ranks;
mod training;

// The helpers of the tests in host memory.
#[allow(dead_code)]
#[path = "../candle/ranks.rs"]
mod tensors;
