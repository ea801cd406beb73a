//! The part of the Python package `comm_torch` that is written in Rust: groups, their operations,
//! and the store of PyTorch as the store in which ranks find each other.
//!
//! Memory is passed by address, so this links to neither PyTorch nor NumPy. The Python part checks
//! tensors, keeps them alive, and copies those that are not contiguous.
//!
//! | question | file |
//! |---|---|
//! | which methods does Python call | `group.rs`, `operation.rs` |
//! | which calls need little of Python | `quick.rs` |
//! | in which order do collectives run, and on which thread | `queue.rs` |
//! | how does memory of a tensor become the buffer of a call | `request.rs` |
//! | what connects a group, and ends with it | `members.rs` |
//! | how do messages own their tensors | `message.rs` |
//! | where is memory that other ranks read in place | `memory.rs` |
//! | how do ranks find each other | `store.rs` |
//! | how do errors reach Python | `errors.rs` |
//! | which functions of the program are called after a failure | `hooks.rs` |

mod errors;
mod group;
mod hooks;
mod members;
mod memory;
mod message;
mod operation;
mod pending;
mod queue;
mod quick;
mod request;
mod store;

use pyo3::prelude::*;

#[pymodule]
fn _comm(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<group::ProcessGroup>()?;
    module.add_class::<operation::Operation>()
}
