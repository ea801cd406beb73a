//! Where a suite runs: which devices, driver and libraries there are, and whether two ranks can be had.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use comm_nccl::{Device, Version};
use serde::{Deserialize, Serialize};

use crate::player::Player;
use crate::trouble::{Outcome, Trouble};
use crate::{Part, gpu, maps};

/// What a process plays that looks around.
pub(crate) const NAME: &str = "place";
const FILE: &str = "place.json";

/// From this version on, two ranks can be on one device if that is asked for.
const SHARED_SINCE: Version = Version::new(2, 30, 3);
/// More ranks prove no more, and start slowly.
const RANKS_MAX: usize = 4;

/// A machine with GPUs, and what is loaded there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The day and the minute, in UTC.
    pub date: String,
    /// The state of this library, as it was told when the program was built.
    pub commit: String,
    /// The name of the first device, as its driver has it.
    pub gpu: String,
    /// How many devices the process can see.
    pub gpus: usize,
    /// The compute capability of the first device.
    pub compute: String,
    /// The memory of the first device, in MiB.
    pub memory_mib: usize,
    /// What the driver says of itself.
    pub driver: String,
    /// The version of CUDA that the driver is for.
    pub cuda: String,
    /// NCCL's version, as one number.
    pub nccl_code: u32,
    /// The file of the driver in the memory of a process that used it.
    pub libcuda: PathBuf,
    /// The file of NCCL in the memory of a process that used it.
    pub libnccl: PathBuf,
    /// The release of the kernel.
    pub kernel: String,
}

/// How cases of several ranks are played on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Several {
    /// The device of each rank.
    pub devices: Vec<usize>,
    /// What NCCL must be told in the environment for that.
    pub environment: Vec<(String, String)>,
}

impl Place {
    /// What was found out by a process that played the part.
    pub(crate) fn found(part: &Part) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(part.folder.join(FILE))?)?)
    }

    /// NCCL's version.
    #[must_use]
    pub const fn nccl(&self) -> Version {
        Version::from_code(self.nccl_code)
    }

    /// How cases of several ranks can be played here.
    ///
    /// # Errors
    /// If they cannot, why.
    pub fn several(&self) -> Result<Several, String> {
        if self.gpus > 1 {
            let devices = (0..self.gpus.min(RANKS_MAX)).collect();
            return Ok(Several { devices, environment: Vec::new() });
        }
        let (nccl, since) = (self.nccl(), SHARED_SINCE);
        if nccl < since {
            return Err(format!(
                "there is one device, and NCCL {nccl} takes no two ranks on one; {since} does"
            ));
        }
        // Two communicators must fit on one device at once.
        let environment = [("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("NCCL_MAX_CTAS", "8")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Several { devices: vec![0, 0], environment: environment.into() })
    }
}

/// Looks around, and writes down what there is.
pub(crate) fn look(player: &Player) -> Outcome {
    let mapped = |name: &str| {
        maps::library(name).ok_or_else(|| Trouble::Wrong(format!("no file called {name}* is mapped")))
    };
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let version = player.library.version();
    let place = Place {
        date: date(),
        commit: option_env!("GPU_CHECK_COMMIT").unwrap_or("unknown").to_owned(),
        gpu: gpu::name(&player.stream)?,
        gpus: Device::count()?,
        compute: gpu::compute_capability(&player.stream)?,
        memory_mib: gpu::memory(&player.stream)?.1 >> 20,
        driver: driver(&read("/proc/driver/nvidia/version")).to_owned(),
        cuda: gpu::cuda_version()?,
        nccl_code: version.major * 10_000 + version.minor * 100 + version.patch,
        libcuda: mapped("libcuda.so").or_else(|_| mapped("gpu_emu"))?,
        libnccl: fs::canonicalize(player.library.path()).unwrap_or_else(|_| player.library.path().into()),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
    };
    let written = serde_json::to_vec(&place).map_err(io::Error::from);
    written
        .and_then(|text| fs::write(player.part.folder.join(FILE), text))
        .map_err(|error| Trouble::Wrong(format!("cannot write down where this is: {error}")))
}

/// The version in what the kernel module says of itself: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...`.
fn driver(said: &str) -> &str {
    let is_version =
        |word: &&str| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit());
    said.lines().next().unwrap_or_default().split_whitespace().find(is_version).unwrap_or("unknown")
}

fn date() -> String {
    let said = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
    let said = said.ok().filter(|output| output.status.success());
    said.map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine that is none.
    pub(crate) fn nowhere(gpus: usize, nccl_code: u32) -> Place {
        let text = |text: &str| text.to_owned();
        Place {
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
        assert_eq!(nowhere(2, 21_803).several().unwrap().devices, [0, 1]);
        assert_eq!(nowhere(8, 23_007).several().unwrap().devices, [0, 1, 2, 3]);
        let shared = nowhere(1, 23_003).several().unwrap();
        assert_eq!(shared.devices, [0, 0]);
        assert!(shared.environment.contains(&("NCCL_MULTI_RANK_GPU_ENABLE".into(), "1".into())));
        let why = nowhere(1, 23_002).several().unwrap_err();
        assert!(why.contains("2.30.2") && why.contains("2.30.3"), "{why}");
    }

    #[test]
    fn the_driver_says_its_version_among_other_things() {
        let said = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12.2\n";
        assert_eq!(driver(said), "580.65.06");
        assert_eq!(driver(""), "unknown");
    }
}
