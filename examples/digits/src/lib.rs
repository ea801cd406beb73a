//! Handwritten digits, recognised by a small network that several processes train together.
//!
//! The program is the binary of the same name. This library holds its parts, so that tests can run
//! them without processes.

pub mod chart;
pub mod data;
pub mod error;
pub mod matmul;
pub mod model;
pub mod optimizer;
pub mod real;
pub mod trace;
pub mod train;

/// The code in the README of the repository must compile. It is checked here, as packages that are
/// published hold no files from outside of them.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
