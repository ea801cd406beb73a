//! Looks for the CUDA driver and NCCL.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::JobSize;
use super::facts::Facts;
use super::problems::Problem;
use crate::host::first_line;

/// The number of NVIDIA in `/sys/bus/pci`.
const NVIDIA: &str = "0x10de";
/// The start of the classes of display controllers there, which include GPUs without a display.
const DISPLAY: &str = "0x03";

/// The software for GPUs, or the reasons why it cannot be used. Without the feature `gpu`, both are
/// `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gpu {
    /// The number of GPUs of NVIDIA in this host, whether they can be used or not.
    pub(super) installed: usize,
    pub(super) driver: Option<Result<Driver, String>>,
    pub(super) nccl: Option<Result<Nccl, String>>,
}

/// A CUDA driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Driver {
    /// The newest version of CUDA that it supports.
    pub(super) cuda: String,
    /// The names of the devices that this process can use.
    pub(super) devices: Vec<String>,
}

/// A library of NCCL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Nccl {
    pub(super) version: String,
    pub(super) path: PathBuf,
}

impl Gpu {
    pub(super) fn find() -> Self {
        Self { installed: installed(), ..software() }
    }

    fn devices(&self) -> usize {
        self.driver.iter().flatten().map(|driver| driver.devices.len()).sum()
    }

    /// Returns the row of the report.
    pub(super) fn driver_text(&self) -> String {
        match &self.driver {
            None => "not looked for".into(),
            Some(Err(_)) => "none".into(),
            Some(Ok(Driver { cuda, devices })) if devices.is_empty() => format!("for CUDA {cuda}, no device"),
            Some(Ok(Driver { cuda, devices })) => format!("for CUDA {cuda}, {}", devices.join(", ")),
        }
    }

    /// Returns the row of the report.
    pub(super) fn nccl_text(&self) -> String {
        match &self.nccl {
            None => "not looked for".into(),
            Some(Err(_)) => "none".into(),
            Some(Ok(Nccl { version, path })) => format!("{version}, {}", path.display()),
        }
    }
}

/// Looks for the software.
#[cfg(feature = "gpu")]
fn software() -> Gpu {
    use comm::nccl;
    // The error of a library lists each attempt in a line of its own.
    let reason = |error: comm::Error| error.to_string().lines().map(str::trim).collect::<Vec<_>>().join("; ");
    let driver = nccl::Driver::find().map_err(reason).map(|found| {
        let (major, minor) = found.version;
        Driver { cuda: format!("{major}.{minor}"), devices: found.devices }
    });
    let nccl = nccl::Library::from_env().map_err(reason).map(|found| {
        let version = found.version().to_string();
        Nccl { version, path: found.path().to_path_buf() }
    });
    Gpu { installed: 0, driver: Some(driver), nccl: Some(nccl) }
}

#[cfg(not(feature = "gpu"))]
fn software() -> Gpu {
    Gpu::default()
}

/// Counts the GPUs of NVIDIA.
fn installed() -> usize {
    let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let value = |device: &fs::DirEntry, name| first_line(&device.path().join(name).to_string_lossy());
    devices.filter(|it| value(it, "vendor") == NVIDIA && value(it, "class").starts_with(DISPLAY)).count()
}

fn gpus(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}

/// A host without GPUs needs no driver.
pub(super) fn driver(facts: &Facts, _: &JobSize) -> Option<Problem> {
    let Facts { host, gpu, .. } = facts;
    if gpu.installed == 0 {
        return None;
    }
    let installed = gpus(gpu.installed);
    match gpu.driver.as_ref()? {
        Err(reason) => Some(Problem::warning(
            format!("{host}: it has {installed}, but its CUDA driver cannot be used: {reason}"),
            "install NVIDIA's driver (nvidia-smi must work); start a container with --gpus all",
        )),
        Ok(driver) if driver.devices.is_empty() => Some(Problem::warning(
            format!("{host}: it has {installed}, but this process can use none"),
            "check CUDA_VISIBLE_DEVICES; start a container with --gpus all",
        )),
        Ok(_) => None,
    }
}

/// NCCL is needed on a host with devices, and where a variable names it.
pub(super) fn nccl(facts: &Facts, _: &JobSize) -> Option<Problem> {
    let Facts { host, gpu, .. } = facts;
    let reason = gpu.nccl.as_ref()?.as_ref().err()?;
    let devices = gpu.devices();
    let text = match devices {
        0 if reason.contains("COMM_NCCL_PATH") => format!("{host}: NCCL cannot be used: {reason}"),
        0 => return None,
        _ => format!("{host}: it has {}, but NCCL cannot be used: {reason}", gpus(devices)),
    };
    let remedy =
        "install libnccl2, or pip install nvidia-nccl-cu12, and set COMM_NCCL_PATH to its libnccl.so.2";
    Some(Problem::warning(text, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobSize = JobSize { ranks: 1, local_ranks: 1 };

    fn facts(installed: usize, driver: Result<&[&str], &str>, nccl: Result<&str, &str>) -> Facts {
        let driver = driver.map_err(str::to_owned).map(|devices| Driver {
            cuda: "12.4".into(),
            devices: devices.iter().map(|&name| name.to_owned()).collect(),
        });
        let nccl =
            nccl.map_err(str::to_owned).map(|version| Nccl { version: version.into(), path: "/n".into() });
        let gpu = Gpu { installed, driver: Some(driver), nccl: Some(nccl) };
        Facts { host: "node1".into(), gpu, ..Facts::default() }
    }

    #[test]
    fn a_host_without_gpus_has_no_problem_unless_it_names_a_library() {
        let none = facts(0, Err("no driver"), Err("no file"));
        assert_eq!((driver(&none, &JOB), nccl(&none, &JOB)), (None, None));
        let named = facts(0, Err("no driver"), Err("/x (COMM_NCCL_PATH): no such file"));
        let text = nccl(&named, &JOB).unwrap().text;
        assert_eq!(text, "node1: NCCL cannot be used: /x (COMM_NCCL_PATH): no such file");
    }

    #[test]
    fn gpus_without_a_driver_without_devices_or_without_nccl_are_named() {
        let text = |problem: Option<Problem>| problem.unwrap().text;
        let found = facts(2, Err("no driver"), Err("no file"));
        let expected = "node1: it has 2 GPUs, but its CUDA driver cannot be used: no driver";
        assert_eq!((text(driver(&found, &JOB)).as_str(), nccl(&found, &JOB)), (expected, None));
        let found = facts(1, Ok(&[]), Ok("2.30.7"));
        assert_eq!(text(driver(&found, &JOB)), "node1: it has 1 GPU, but this process can use none");
        let found = facts(1, Ok(&["H100"]), Err("too old"));
        assert_eq!(text(nccl(&found, &JOB)), "node1: it has 1 GPU, but NCCL cannot be used: too old");
        let found = facts(1, Ok(&["H100"]), Ok("2.30.7"));
        assert_eq!((driver(&found, &JOB), nccl(&found, &JOB)), (None, None));
        assert_eq!(found.gpu.driver_text(), "for CUDA 12.4, H100");
        assert_eq!(found.gpu.nccl_text(), "2.30.7, /n");
    }
}
