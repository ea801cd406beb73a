//! Assembles kernels with NVIDIA's assembler, ptxas.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::wheel::{Part, Wheel};
use crate::{commands, places};

/// The last major version with all devices that NCCL supports. Its package is a seventh of the size
/// of NCCL's.
const PTXAS: Wheel = Wheel {
    package: "nvidia-cuda-nvcc-cu12",
    version: "12.9.86",
    sha256: &[
        "5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0",
        "44e1eca4d08926193a558d2434b1bf83d57b4d5743e0c431c0c83d51da1df62b",
    ],
    part: Part::Files(&["nvidia/cuda_nvcc/bin/ptxas"]),
};

/// The oldest device of NCCL 2.18, and one of each generation up to Blackwell.
const DEVICES: [&str; 7] = ["sm_50", "sm_60", "sm_70", "sm_80", "sm_90", "sm_100", "sm_120"];

/// Assembles files of this folder for every device. A warning is an error.
pub(super) fn run(folder: &Path, names: &[&str], out: &mut impl Write) -> Result<()> {
    let ptxas = fetch()?;
    for device in DEVICES {
        for name in names {
            let mut command = Command::new(&ptxas);
            command.args(["--warning-as-error", "--warn-on-spills", "--suppress-stack-size-warning"]);
            command.args(["--gpu-name", device, "--output-file", "/dev/null"]);
            commands::output(command.arg(folder.join(name).with_extension("ptx")))?;
        }
    }
    writeln!(out, "assembled {} files for {}", names.len(), DEVICES.join(", "))?;
    Ok(())
}

/// Downloads the assembler unless it is already there, and returns its path.
fn fetch() -> Result<PathBuf> {
    let folder = places::target().join("nccl").join("ptxas");
    PTXAS.fetch(&folder)?;
    let path = folder.join("ptxas");
    // Wheels may be unpacked without permissions.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(Error::file(&path))?;
    Ok(path)
}
