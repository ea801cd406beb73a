//! The programs that train with each library.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::model::TrainingModel;
use crate::compare::args::{Compare, Transport};
use crate::compare::built;
use crate::compare::library::{OURS, pytorch_version, sources};

/// A program that measures every model with several variants, and prints a line for each.
pub(super) trait TrainingProgram: Debug {
    /// Returns the names of the variants on the command line and in the output.
    fn variants(&self) -> &'static [&'static str];

    /// Returns the name of a variant in records and reports.
    fn library(&self, variant: &str) -> String;

    /// Returns the program with its arguments.
    fn command(&self, args: &TrainingArgs) -> Command;

    /// Returns the names of all variants in records and reports.
    fn libraries(&self) -> Vec<String> {
        self.variants().iter().map(|variant| self.library(variant)).collect()
    }
}

/// The arguments of one measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrainingArgs {
    pub(super) ranks: usize,
    pub(super) pairs: u32,
    pub(super) block_ms: u32,
}

impl TrainingArgs {
    fn models() -> String {
        TrainingModel::ALL.map(TrainingModel::name).join(",")
    }
}

/// `ddp` of the package `benches`, over one transport.
#[derive(Debug)]
struct TrainingByOurs {
    program: PathBuf,
    transport: Transport,
}

/// Returns one program per transport, with its version.
pub(super) fn ours(compare: &Compare) -> Vec<(Box<dyn TrainingProgram>, String)> {
    let ours = |transport: &Transport| {
        let ours = TrainingByOurs { program: built("ddp"), transport: *transport };
        (Box::new(ours) as Box<dyn TrainingProgram>, format!("comm {}", env!("CARGO_PKG_VERSION")))
    };
    compare.transport.iter().map(ours).collect()
}

impl TrainingProgram for TrainingByOurs {
    fn variants(&self) -> &'static [&'static str] {
        &["plain", "bf16"]
    }

    fn library(&self, variant: &str) -> String {
        let suffix = variant.strip_prefix("plain").map_or_else(|| format!("-{variant}"), str::to_owned);
        format!("{OURS}-{}{suffix}", self.transport.name())
    }

    fn command(&self, args: &TrainingArgs) -> Command {
        let TrainingArgs { ranks, pairs, block_ms } = args;
        let mut command = Command::new(&self.program);
        command.env("COMM_TRANSPORT", self.transport.name());
        let options = [
            ("--ranks", ranks.to_string()),
            ("--pairs", pairs.to_string()),
            ("--block-ms", block_ms.to_string()),
            ("--models", TrainingArgs::models()),
            ("--variants", self.variants().join(",")),
        ];
        for (name, value) in options {
            command.args([name, &value]);
        }
        command
    }
}

/// DDP of PyTorch over Gloo.
#[derive(Debug)]
struct TrainingByPyTorch {
    python: PathBuf,
    program: PathBuf,
}

/// Returns the program with its version, or an explanation of the installation of PyTorch.
pub(super) fn pytorch(python: &Path) -> Result<(Box<dyn TrainingProgram>, String), String> {
    let version = pytorch_version(python)?;
    let program = TrainingByPyTorch { python: python.to_owned(), program: sources().join("ddp.py") };
    Ok((Box::new(program), format!("DDP of PyTorch {version}")))
}

impl TrainingProgram for TrainingByPyTorch {
    fn variants(&self) -> &'static [&'static str] {
        &["default", "view", "bf16", "bf16-view"]
    }

    fn library(&self, variant: &str) -> String {
        if variant == "default" { "pytorch".into() } else { format!("pytorch-{variant}") }
    }

    fn command(&self, args: &TrainingArgs) -> Command {
        let TrainingArgs { ranks, pairs, block_ms } = args;
        let mut command = Command::new(&self.python);
        command.arg(&self.program).args([ranks.to_string(), pairs.to_string(), block_ms.to_string()]);
        command.args([TrainingArgs::models(), self.variants().join(",")]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_have_names_of_their_own() {
        let shm = TrainingByOurs { program: PathBuf::new(), transport: Transport::Shm };
        assert_eq!([shm.library("plain"), shm.library("bf16")], ["comm-shm", "comm-shm-bf16"]);
        let pytorch = TrainingByPyTorch { python: PathBuf::new(), program: PathBuf::new() };
        assert_eq!(pytorch.libraries(), ["pytorch", "pytorch-view", "pytorch-bf16", "pytorch-bf16-view"]);
    }
}
