//! Bindings of NCCL, loaded at run time: building needs neither NCCL nor CUDA, and programs start
//! without them.
//!
//! [`Nccl::load`] finds the library, or returns all attempted paths with the messages of the
//! loader. A loaded library has one method per call of NCCL, with NCCL's name. A call that the
//! library lacks returns [`MissingSymbol`]. The oldest supported library is [`Version::FLOOR`];
//! structs and constants are those of [`Version::BINDINGS`], which are compatible with older
//! libraries, because NCCL only appends to them.
//!
//! Result codes, operators and element types are numbers with named constants, such as
//! [`ncclResult_t::ncclInProgress`], so values of later libraries are valid too. Handles can be
//! sent between threads; all calls with them are unsafe.
//!
//! # Example
//!
//! ```
//! use nccl_sys::{Nccl, Search};
//!
//! match Nccl::load(&Search::from_env()) {
//!     Ok(nccl) => println!("NCCL {} at {}", nccl.version(), nccl.path().display()),
//!     Err(error) => println!("{error}"),
//! }
//! ```
#![deny(unsafe_code)]

#[allow(
    clippy::complexity,
    clippy::style,
    clippy::undocumented_unsafe_blocks,
    missing_debug_implementations,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_code,
    unused_qualifications,
    reason = "generated: NCCL's names and signatures are what they are"
)]
mod bindings;
mod error;
mod handle;
mod library;
mod locate;
mod search;
mod symbol;
mod version;

pub use bindings::*;
pub use error::{Attempt, LoadError, Refusal};
pub use library::Nccl;
pub use search::{Origin, Search};
pub use symbol::{Call, MissingSymbol};
pub use version::Version;
