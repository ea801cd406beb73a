//! Client of the process managers of MPI.
//!
//! `mpiexec` of MPICH and of Intel MPI (Hydra) gives each process that it starts a socket, over
//! which the processes of a job exchange short texts: each puts texts under keys, and after a fence
//! all can get them. MPI libraries find their peers in this way. [`ProcessManager`] does the same
//! without an MPI library. It speaks version 1 of the protocol PMI, which consists of lines of
//! text. With a port instead of a socket, [`Introduction`] comes first.
//!
//! A process can use its socket once, so a program that also calls `MPI_Init` must not use it.
//!
//! The processes of Open MPI exchange a text through [`pmix`].
//!
//! | part | file |
//! |---|---|
//! | the requests | `lib.rs` |
//! | the connection to a port | `port.rs` |
//! | the library of PMIx | `pmix.rs` |
//! | lines and their fields, within a deadline | `wire.rs` |
//!
//! # Example
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use comm_core::Result;
//! use comm_pmi::ProcessManager;
//!
//! /// Returns the address of rank 0, given the value of `PMI_FD`.
//! fn exchange(descriptor: i32, rank: usize, own: &str) -> Result<Option<String>> {
//!     let mut manager = ProcessManager::over(descriptor, Duration::from_secs(60))?;
//!     if rank == 0 {
//!         manager.put("address", own)?;
//!     }
//!     manager.fence()?;
//!     let address = manager.get("address")?;
//!     manager.finalize()?;
//!     Ok(address)
//! }
//! ```
#![deny(unsafe_code)]

pub mod pmix;
mod port;
mod wire;

use std::os::fd::RawFd;
use std::time::Duration;

use comm_core::{Error, Result};

pub use port::Introduction;

use wire::{Answer, Wire};

/// The connection of this process to its process manager.
#[derive(Debug)]
pub struct ProcessManager {
    wire: Wire,
    /// The name of the key-value space, which each job has to itself.
    space: String,
}

impl ProcessManager {
    /// Begins to use the socket with this descriptor, the value of `PMI_FD`. Each later call must
    /// end before `timeout` has passed.
    ///
    /// # Errors
    /// [`Error::Io`] if the descriptor is not a socket that is open in this process, and
    /// [`Error::Malformed`] if the process manager does not speak PMI-1; the errors of every other
    /// call, too.
    pub fn over(descriptor: RawFd, timeout: Duration) -> Result<Self> {
        let mut wire = Wire::over(descriptor, timeout)?;
        wire.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let space = wire.ask("get_my_kvsname", "my_kvsname")?.field("kvsname")?.to_owned();
        Ok(Self { wire, space })
    }

    /// Puts a text under a key, for all processes of the job after the next [`fence`](Self::fence).
    /// Both must consist of printable ASCII characters other than spaces; Hydra allows 64 for a key
    /// and 1,024 for a text.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the key or the text contains other characters; [`Error::Malformed`] if
    /// the process manager refuses it, or its answer cannot be understood; [`Error::Io`] if it does
    /// not answer in time, or the connection breaks.
    pub fn put(&mut self, key: &str, text: &str) -> Result<()> {
        for value in [key, text] {
            if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Error::setting("text for the process manager", value, "it has other characters"));
            }
        }
        let request = format!("put kvsname={} key={key} value={text}", self.space);
        self.wire.ask(&request, "put_result").map(drop)
    }

    /// Waits until all processes of the job have called this.
    ///
    /// # Errors
    /// As [`ProcessManager::put`].
    pub fn fence(&mut self) -> Result<()> {
        self.wire.ask("barrier_in", "barrier_out").map(drop)
    }

    /// Returns the text that some process has put under a key before the last fence, if there is
    /// one.
    ///
    /// # Errors
    /// As [`ProcessManager::put`].
    pub fn get(&mut self, key: &str) -> Result<Option<String>> {
        let request = format!("get kvsname={} key={key}", self.space);
        match self.wire.request(&request, "get_result")? {
            Answer::Refused(_) => Ok(None),
            Answer::Given(reply) => reply.field("value").map(|text| Some(text.to_owned())),
        }
    }

    /// Ends the use of the process manager. Without this, it takes the end of the process for a
    /// failure, and ends the job.
    ///
    /// # Errors
    /// As [`ProcessManager::put`].
    pub fn finalize(mut self) -> Result<()> {
        self.wire.ask("finalize", "finalize_ack").map(drop)
    }
}
