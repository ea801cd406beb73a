//! The devices, driver and libraries of a machine, and the placement of several ranks on them.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use comm_nccl::{Device, Version};
use serde::{Deserialize, Serialize};

use crate::context::RankContext;
use crate::error::{CaseError, Outcome};
use crate::{CaseSpec, gpu, loaded};

/// The name of the task that inspects the machine.
pub(crate) const NAME: &str = "machine";
const FILE: &str = "machine.json";

/// The first version of NCCL that supports several ranks per device, if the environment allows it.
const SHARED_SINCE: Version = Version::new(2, 30, 3);
/// The largest number of ranks. More would find no more errors and be slow to start.
const RANKS_MAX: usize = 4;

/// A machine with GPUs and its loaded libraries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The date and time in UTC.
    pub date: String,
    /// The commit that was passed when the program was built.
    pub commit: String,
    /// The name of the first device.
    pub gpu: String,
    /// The number of visible devices.
    pub gpus: usize,
    /// The compute capability of the first device.
    pub compute: String,
    /// The memory of the first device, in MiB.
    pub memory_mib: usize,
    /// The version of the driver.
    pub driver: String,
    /// The CUDA version of the driver.
    pub cuda: String,
    /// The version code of NCCL.
    pub nccl_code: u32,
    /// The mapped file of the driver.
    pub libcuda: PathBuf,
    /// The mapped file of NCCL.
    pub libnccl: PathBuf,
    /// The release of the kernel.
    pub kernel: String,
}

/// The devices of several ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The device of each rank.
    pub devices: Vec<usize>,
    /// The environment variables that NCCL needs for this placement.
    pub environment: Vec<(String, String)>,
}

impl Machine {
    /// Reads the result of [`inspect`].
    pub(crate) fn read(spec: &CaseSpec) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(spec.folder.join(FILE))?)?)
    }

    /// Returns NCCL's version.
    #[must_use]
    pub const fn nccl(&self) -> Version {
        Version::from_code(self.nccl_code)
    }

    /// Returns the devices for cases of several ranks.
    ///
    /// # Errors
    /// The reason why several ranks cannot run.
    pub fn placement(&self) -> Result<Placement, String> {
        if self.gpus > 1 {
            let devices = (0..self.gpus.min(RANKS_MAX)).collect();
            return Ok(Placement { devices, environment: Vec::new() });
        }
        let (nccl, since) = (self.nccl(), SHARED_SINCE);
        if nccl < since {
            return Err(format!(
                "there is one device, and NCCL {nccl} does not support two ranks per device; {since} does"
            ));
        }
        // The number of thread blocks is limited because the memory of two communicators must fit
        // on one device.
        let environment = [("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("NCCL_MAX_CTAS", "8")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Placement { devices: vec![0, 0], environment: environment.into() })
    }
}

/// Inspects the machine, and writes the result to a file.
pub(crate) fn inspect(ctx: &RankContext) -> Outcome {
    let mapped = |name: &str| {
        loaded::library(name).ok_or_else(|| CaseError::Wrong(format!("no file {name}* is mapped")))
    };
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let version = ctx.library.version();
    let machine = Machine {
        date: date(),
        commit: option_env!("GPU_CHECK_COMMIT").unwrap_or("unknown").to_owned(),
        gpu: gpu::name(&ctx.stream)?,
        gpus: Device::count()?,
        compute: gpu::compute_capability(&ctx.stream)?,
        memory_mib: gpu::memory(&ctx.stream)?.1 >> 20,
        driver: driver(&read("/proc/driver/nvidia/version")).to_owned(),
        cuda: gpu::cuda_version()?,
        nccl_code: version.major * 10_000 + version.minor * 100 + version.patch,
        libcuda: mapped("libcuda.so").or_else(|_| mapped("gpu_emu"))?,
        libnccl: fs::canonicalize(ctx.library.path()).unwrap_or_else(|_| ctx.library.path().into()),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
    };
    let written = serde_json::to_vec(&machine).map_err(io::Error::from);
    written
        .and_then(|text| fs::write(ctx.spec.folder.join(FILE), text))
        .map_err(|error| CaseError::Wrong(format!("cannot write the description of the machine: {error}")))
}

/// Returns the version in the text of the kernel module: `NVRM version: NVIDIA UNIX x86_64 Kernel
/// Module  580.65.06  ...`.
fn driver(text: &str) -> &str {
    let is_version =
        |word: &&str| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit());
    text.lines().next().unwrap_or_default().split_whitespace().find(is_version).unwrap_or("unknown")
}

fn date() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
    let output = output.ok().filter(|output| output.status.success());
    output.map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a machine for tests.
    pub(crate) fn test_machine(gpus: usize, nccl_code: u32) -> Machine {
        let text = |text: &str| text.to_owned();
        Machine {
            date: text("2001-02-03 04:05 UTC"),
            commit: text("abcdef0"),
            gpu: text("A device of a test"),
            gpus,
            compute: text("0.0"),
            memory_mib: 1024,
            driver: text("1.2.3"),
            cuda: text("0.1"),
            nccl_code,
            libcuda: "/nowhere/libcuda.so.1.2.3".into(),
            libnccl: "/nowhere/libnccl.so.2".into(),
            kernel: text("4.5.6"),
        }
    }

    #[test]
    fn several_ranks_need_several_devices_or_a_library_that_shares_one() {
        assert_eq!(test_machine(2, 21_803).placement().unwrap().devices, [0, 1]);
        assert_eq!(test_machine(8, 23_007).placement().unwrap().devices, [0, 1, 2, 3]);
        let shared = test_machine(1, 23_003).placement().unwrap();
        assert_eq!(shared.devices, [0, 0]);
        assert!(shared.environment.contains(&("NCCL_MULTI_RANK_GPU_ENABLE".into(), "1".into())));
        let why = test_machine(1, 23_002).placement().unwrap_err();
        assert!(why.contains("2.30.2") && why.contains("2.30.3"), "{why}");
    }

    #[test]
    fn the_version_of_the_driver_is_parsed() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12.2\n";
        assert_eq!(driver(text), "580.65.06");
        assert_eq!(driver(""), "unknown");
    }
}
