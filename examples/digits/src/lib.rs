//! Handwritten digits, recognised by a small network that several processes train together.
//!
//! The binary of the same name is the program. This library contains its parts, so that tests can
//! run them without processes.

mod agreement;
pub mod chart;
pub mod data;
pub mod error;
pub mod matmul;
pub mod model;
pub mod optimizer;
pub mod real;
mod replicas;
pub mod trace;
pub mod train;
