//! Where programs lie, and how those of this repository are made.

use std::path::PathBuf;
use std::process::Command;

use super::error::{CompareError, Result};
use crate::places;

/// The folders of this repository.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) root: PathBuf,
    target: PathBuf,
}

impl Places {
    pub(crate) fn of_this_repository() -> Self {
        Self { root: places::root(), target: places::target() }
    }

    pub(crate) fn commctl(&self) -> PathBuf {
        self.target.join("release/commctl")
    }

    pub(crate) fn limits(&self) -> PathBuf {
        self.target.join("release/limits")
    }

    /// Where the programs lie that measure peers.
    pub(crate) fn sources(&self) -> PathBuf {
        self.root.join("xtask/peers")
    }

    /// Where these are built.
    pub(crate) fn built(&self) -> PathBuf {
        self.target.join("peers")
    }
}

/// Builds what is measured as users build it, and what measures the machine.
pub(crate) fn programs(places: &Places) -> Result<()> {
    let packages = ["--package", "comm-cli", "--bin", "commctl", "--package", "benches", "--bin", "limits"];
    cargo(
        Command::new("cargo")
            .args(["build", "--quiet", "--release"])
            .args(packages)
            .current_dir(&places.root),
    )
}

/// Runs cargo, which says itself what it does not like.
pub(crate) fn cargo(command: &mut Command) -> Result<()> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(CompareError::Failed { program: "cargo".into(), reason: status.to_string() }),
        Err(source) => Err(CompareError::Start { program: "cargo".into(), source }),
    }
}
