//! A byte-level GPT that several processes train together.
//!
//! The binary of the same name is the program. This library contains its parts, so that tests can
//! run them without processes.

#![forbid(unsafe_code)]

pub mod chart;
pub mod data;
pub mod error;
pub mod history;
pub mod initial;
pub mod model;
mod outer;
pub mod settings;
pub mod store;
pub mod train;
pub mod trigram;

pub use error::{Error, Result};
