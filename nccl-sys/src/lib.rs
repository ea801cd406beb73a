//! Bindings of NCCL, loaded at run time: neither NCCL nor CUDA is needed to build, and a program
//! runs where they are not.
//!
//! [`Nccl::load`] finds the library, or says where it was looked for and what the loader said. A
//! loaded library has one method per call of NCCL, under NCCL's name. Calls that the library is too
//! old for are an error, [`MissingSymbol`], and never a panic. The oldest library that is accepted
//! is [`Version::FLOOR`]; structs and constants are those of [`Version::BINDINGS`], and fit older
//! libraries, as NCCL only ever appends to them.
//!
//! Codes, operators and types of elements are numbers with names, such as
//! [`ncclResult_t::ncclInProgress`], so that what a later library answers is still a value. Handles
//! can be sent between threads; everything done with them is unsafe.
//!
//! | question | file |
//! |---|---|
//! | where is the library looked for | `search.rs` |
//! | how is it loaded, and what can be asked of it | `library.rs` |
//! | where does it lie | `locate.rs` |
//! | which calls does it have, and since when | `symbol.rs` |
//! | which version is it | `version.rs` |
//! | what can go wrong | `error.rs` |
//! | what do NCCL's names stand for | `bindings.rs`, written by `cargo xtask nccl-bindings`, and `handle.rs` |
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
