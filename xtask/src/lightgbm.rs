//! Installs LightGBM in the build folder.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use crate::error::Result;
use crate::requirements::Requirements;

const LIGHTGBM: Requirements =
    Requirements { file: "examples/lightgbm/tests/requirements.txt", package: "lightgbm", size: "60 MB" };

/// Install LightGBM with pip in target/lightgbm, and print the folder of its packages
///
/// The folder is a value of COMM_TEST_LIGHTGBM for the tests of examples/lightgbm. Needs Python
/// 3.11 or later with pip, to download 60 MB for x86-64 from PyPI and check their hashes.
#[derive(Debug, Args)]
pub(crate) struct LightGbmFetch {
    /// The interpreter whose pip is used
    #[arg(long, default_value = "python3")]
    python: PathBuf,
}

impl LightGbmFetch {
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<()> {
        let folder = LIGHTGBM.install(&self.python, |_| Ok(()))?;
        writeln!(out, "{}", folder.join("packages").display())?;
        Ok(())
    }
}
