//! The report of a rank's device and NCCL that it sends to the others, before all choose one path
//! together.

use comm_core::wire::{self, Writer};
use comm_core::{Error, Result};
use comm_nccl::{Capabilities, Device, Library};

use super::config::{DeviceConfig, DevicePath};

/// The size of an encoded report in bytes: fixed, so that one all-gather exchanges them.
pub(super) const REPORT_BYTES: usize = 512;
const OBSTACLE_BYTES: usize = REPORT_BYTES - 1 - 1 - 1 - Capabilities::BYTES - 2;

/// The device and the library of this rank.
#[derive(Debug)]
pub(super) struct LocalDevice {
    pub(super) device: Result<Device>,
    /// `None` if NCCL is not wanted, or there is no device.
    pub(super) library: Option<Result<Library>>,
}

/// A rank's report of its device and its library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) path: DevicePath,
    pub(super) has_device: bool,
    /// `None` if NCCL is not wanted, or something that it needs is missing.
    pub(super) nccl: Option<Capabilities>,
    /// The reason why the device or the library is missing.
    pub(super) obstacle: String,
}

impl LocalDevice {
    /// Opens the device, and loads NCCL if `config` wants it.
    pub(super) fn find(config: &DeviceConfig) -> Self {
        let device = config.device.open();
        let wanted = config.path != DevicePath::Staged && device.is_ok();
        Self { device, library: wanted.then(|| config.load()) }
    }

    pub(super) fn report(&self, path: DevicePath) -> Report {
        let nccl = match (&self.device, &self.library) {
            (Err(error), _) | (_, Some(Err(error))) => Err(error.clone()),
            (Ok(_), None) => Ok(None),
            (Ok(device), Some(Ok(library))) => Capabilities::of(library, device).map(Some),
        };
        let obstacle = nccl.as_ref().err().map(message).unwrap_or_default();
        Report { path, has_device: self.device.is_ok(), nccl: nccl.ok().flatten(), obstacle }
    }
}

/// The message of an error on one line, without the name of a missing backend.
pub(super) fn message(error: &Error) -> String {
    let message = match error {
        Error::BackendUnavailable { detail, .. } => detail.clone(),
        Error::Invalid(invalid) => invalid.to_string(),
        other => other.to_string(),
    };
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Report {
    /// An obstacle that does not fit is cut.
    pub(super) fn encode(&self) -> [u8; REPORT_BYTES] {
        let path = DevicePath::ALL.iter().position(|path| *path == self.path).unwrap_or(0);
        let mut to = Writer::new();
        to.size::<u8>(path).put(u8::from(self.has_device));
        to.option(self.nccl, |to, nccl| nccl.encode(to)).text::<u16>(&self.obstacle, OBSTACLE_BYTES);
        to.into_array()
    }

    /// Reads the report of another rank, after which zeros follow.
    pub(super) fn decode(bytes: &[u8; REPORT_BYTES]) -> wire::Result<Self> {
        wire::decode(bytes, |r| {
            let path = r.code("device path", |path| DevicePath::ALL.get(usize::from(path)).copied())?;
            let has_device = r.flag("flag of a device")?;
            let nccl = r.option(Capabilities::decode)?;
            let obstacle = r.text::<u16>(OBSTACLE_BYTES)?.to_owned();
            r.rest();
            Ok(Self { path, has_device, nccl, obstacle })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports() -> [Report; 2] {
        // A device with a version of NCCL, as the rank would send it.
        let bytes = [1, 2, 0, 0, 0, 30, 0, 0, 0, 7, 0, 0, 0].into_iter().chain([7; 16]);
        let nccl = wire::decode(&bytes.collect::<Vec<u8>>(), Capabilities::decode).ok();
        assert!(nccl.is_some());
        let whole = Report { path: DevicePath::Auto, has_device: true, nccl, obstacle: String::new() };
        let obstacle = "there is no driver".into();
        let none = Report { has_device: false, nccl: None, obstacle, ..whole.clone() };
        [whole, none]
    }

    comm_sim::hostile_bytes!(reports_are_read_as_they_were_written: reports(), |report| report.encode().to_vec(),
        |bytes| Report::decode(bytes.try_into().ok()?).ok());

    #[test]
    fn a_long_obstacle_is_cut_between_characters() {
        let report = Report { obstacle: "ä".repeat(REPORT_BYTES), ..reports()[1].clone() };
        let read = Report::decode(&report.encode()).map(|report| report.obstacle).unwrap_or_default();
        assert!(read.chars().all(|letter| letter == 'ä') && read.len() > OBSTACLE_BYTES - 2, "{read}");
    }
}
