//! Generates the bindings of NCCL from its header, and downloads NCCL for tests.

mod bindings;
mod releases;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::error::Result;
use crate::places;
use releases::Release;

/// Generate nccl-sys/src/bindings.rs from NCCL's header.
///
/// Needs Python with pip, to download the header and libclang from PyPI into target/nccl.
#[derive(Debug, Args)]
pub(crate) struct Bindings {
    /// Write nothing, and fail if the file is outdated
    #[arg(long)]
    check: bool,

    /// A header to use instead of the release's from which the bindings were made
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,

    /// The folder of a libclang to use instead of that on PyPI
    #[arg(long, value_name = "FOLDER", env = "LIBCLANG_PATH")]
    libclang: Option<PathBuf>,
}

/// Download libnccl into target/nccl, and print its path.
///
/// Needs Python with pip, to download about 300 MB from PyPI and check their hash. A release that
/// is already there is not downloaded again.
#[derive(Debug, Args)]
pub(crate) struct Fetch {
    /// The release
    #[arg(long = "version", value_name = "VERSION", default_value = releases::BINDINGS.version, value_parser = PossibleValuesParser::new(releases::versions()))]
    release: String,
}

impl Bindings {
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<()> {
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
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<()> {
        let release = Release::named(&self.release).unwrap_or(&releases::BINDINGS);
        let files = release.fetch(&places::target())?;
        writeln!(out, "{}", files.library.display())?;
        Ok(())
    }
}
