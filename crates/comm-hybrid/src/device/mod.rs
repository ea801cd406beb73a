//! Device buffers in addition to host buffers: one group with two communicators that fail together.

mod agreement;
mod communicator;
mod config;
mod failure_link;
mod guard;
mod local_device;
mod staging;

pub use communicator::HybridCommunicator;
pub use config::{DeviceChoice, DeviceConfig, DevicePath};
pub use staging::StagedCommunicator;
