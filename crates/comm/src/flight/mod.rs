//! Files with the last calls of each rank, which show why a program hangs or failed.
//!
//! If `COMM_FLIGHT_DIR` or [`Config::flight_dir`](crate::Config::flight_dir) names a folder, each
//! rank writes a file there when a communicator fails, and `commctl doctor --flight FOLDER`
//! compares the files. A rank that is stopped or was killed writes none, which the report states.
//! With `COMM_FLIGHT_ON_CLOSE=1`
//! ([`RingConfig::record_on_close`](crate::RingConfig::record_on_close)) it also writes a file when
//! a communicator is closed, for a trace of a program that succeeds.
//!
//! A program can write the same file at any time, for example in a thread that watches its progress
//! while another one is blocked in a collective:
//!
#![cfg_attr(feature = "sim", doc = "```")]
#![cfg_attr(not(feature = "sim"), doc = "```ignore")]
//! use comm::flight::{self, FlightDump};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let folder = folder.path();
//! comm::threads::run(2, |comm| {
//!     comm.barrier().unwrap();
//!     let record = comm.flight_record().unwrap();
//!     let path = flight::write(folder, &FlightDump::new(&record, 0)).unwrap();
//!     let dump = FlightDump::parse(&std::fs::read(path).unwrap()).unwrap();
//!     assert_eq!(dump.rank, comm.rank());
//!     assert_eq!(dump.calls.last().unwrap().collective, "barrier");
//! })?;
//! # Ok::<_, comm::Error>(())
//! ```

mod dump;
#[cfg(feature = "tcp")]
mod origin;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use comm_core::{Error, FlightSink, Result};

pub use dump::{DumpedCall, DumpedFailure, DumpedState, FlightDump};
#[cfg(feature = "tcp")]
pub(crate) use origin::Origin;

/// Returns a sink that writes a file to this folder for each record that it gets. A failure to
/// write is logged. All ranks of a job pass the same `job`, by which records of different jobs in
/// one folder are told apart.
pub fn sink(folder: impl Into<PathBuf>, job: u64) -> FlightSink {
    let folder = folder.into();
    FlightSink::new(move |record| write_or_log(&folder, &FlightDump::new(record, job)))
}

fn write_or_log(folder: &Path, dump: &FlightDump) {
    match write(folder, dump) {
        Ok(path) => tracing::info!(path = %path.display(), "wrote the last calls of a communicator"),
        Err(error) => tracing::error!(%error, "the last calls of a communicator are lost"),
    }
}

/// Writes a file to this folder, which is created if it does not exist, and returns its path. The
/// file appears with all of its content, and replaces that of an earlier failure of the same group
/// on the same rank.
///
/// # Errors
/// [`Error::Io`].
pub fn write(folder: &Path, dump: &FlightDump) -> Result<PathBuf> {
    let path = folder.join(dump.file_name());
    let partial = folder.join(format!(".{}.{}.partial", dump.file_name(), std::process::id()));
    let written = fs::create_dir_all(folder)
        .and_then(|()| Ok(serde_json::to_vec(dump)?))
        .and_then(|bytes| fs::write(&partial, bytes))
        .and_then(|()| fs::rename(&partial, &path));
    match written {
        Ok(()) => Ok(path),
        Err(error) => {
            // The partial file may not exist.
            drop(fs::remove_file(&partial));
            Err(Error::io(format!("write {}", path.display()), error))
        }
    }
}
