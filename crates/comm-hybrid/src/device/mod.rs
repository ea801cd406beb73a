//! Device buffers beside host buffers: one group with two communicators, which live and fail
//! together.

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
