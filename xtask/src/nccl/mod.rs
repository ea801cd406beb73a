//! What this repository takes of NCCL: bindings, which are made from its header, and the library,
//! for tests.
//!
//! | file | question |
//! |---|---|
//! | `wheel` | how do files come from PyPI? |
//! | `releases` | which releases of NCCL are known? |
//! | `bindings` | what are the bindings? |

mod bindings;
mod releases;
mod wheel;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::places;
use releases::Release;

/// Write nccl-sys/src/bindings.rs from NCCL's header.
///
/// Needs Python with pip, which fetches the header and libclang from PyPI once; both are kept in
/// target/nccl.
#[derive(Debug, Args)]
pub(crate) struct Bindings {
    /// Write nothing, and fail if the file is not what would be written
    #[arg(long)]
    check: bool,

    /// A header to take instead of that of the release that the bindings are made from
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,

    /// The folder of a libclang to take instead of the one on PyPI
    #[arg(long, value_name = "FOLDER", env = "LIBCLANG_PATH")]
    libclang: Option<PathBuf>,
}

/// Put a libnccl into target/nccl, and print its path.
///
/// Needs Python with pip, which fetches some 300 MB from PyPI and compares their checksum with the
/// one known here. What is there already is not fetched again.
#[derive(Debug, Args)]
pub(crate) struct Fetch {
    /// Which release
    #[arg(long = "version", value_name = "VERSION", default_value = releases::BINDINGS.version, value_parser = PossibleValuesParser::new(releases::versions()))]
    release: String,
}

/// Why there is no library, or why the bindings are not up to date.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NcclError {
    /// What is needed from PyPI did not come.
    #[error(transparent)]
    Wheel(#[from] wheel::WheelError),
    /// A program could not be started.
    #[error("cannot start {program}")]
    Start { program: &'static str, source: io::Error },
    /// A program failed, and has said why.
    #[error("{program} failed: {reason}")]
    Failed { program: &'static str, reason: String },
    /// A file could not be written.
    #[error("{}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The committed file is another one.
    #[error("the bindings are not up to date; run `cargo xtask nccl-bindings`:\n{0}")]
    Stale(String),
    /// Standard output is closed.
    #[error("cannot write")]
    Output(#[from] io::Error),
}

impl Bindings {
    /// Writes the bindings, or only checks that they are what would be written.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), NcclError> {
        let header = match &self.header {
            Some(header) => header.clone(),
            None => releases::BINDINGS.fetch(&places::target())?.header,
        };
        let libclang = match &self.libclang {
            Some(folder) => folder.clone(),
            None => bindings::fetch_libclang(&places::target())?,
        };
        let text = bindings::generate(&header, &libclang)?;
        if self.check { bindings::compare(&text, out) } else { bindings::write(&text, out) }
    }
}

impl Fetch {
    /// Fetches the library unless it is there, and prints its path.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), NcclError> {
        let release = Release::named(&self.release).unwrap_or(&releases::BINDINGS);
        let files = release.fetch(&places::target())?;
        writeln!(out, "{}", files.library.display())?;
        Ok(())
    }
}
