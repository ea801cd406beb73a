//! Gloo, through PyTorch.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Library, MeasurementArgs, Search, output, sources};

/// Prints the version of PyTorch, and fails without Gloo.
const PROBE: &str =
    "import torch, torch.distributed as dist; assert dist.is_gloo_available(); print(torch.__version__)";

#[derive(Debug)]
struct Gloo {
    python: PathBuf,
    program: PathBuf,
}

/// Returns the version of PyTorch, or an explanation of its installation.
pub(in crate::compare) fn pytorch_version(python: &Path) -> Result<String, String> {
    let version = output(Command::new(python).args(["-c", PROBE])).ok_or_else(|| {
        format!(
            "{} has no PyTorch with Gloo; try `python3 -m venv torch && torch/bin/pip install torch numpy`, and \
             `--python torch/bin/python`",
            python.display()
        )
    })?;
    Ok(version.trim().to_owned())
}

pub(super) fn find(python: &Path) -> Search {
    let version = pytorch_version(python)?;
    let gloo = Gloo { python: python.to_owned(), program: sources().join("gloo.py") };
    Ok((Box::new(gloo), format!("Gloo of PyTorch {version}")))
}

impl Library for Gloo {
    fn name(&self) -> String {
        "gloo".into()
    }

    fn command(&self, args: &MeasurementArgs<'_>) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(&self.program).arg(args.case.ranks.to_string()).args(args.to_strings());
        command
    }
}
