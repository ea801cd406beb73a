//! The report of a rank's device and NCCL library, which the ranks exchange before they agree on a
//! path.

use comm_core::wire::{self, Writer};
use comm_core::{Error, Result};
use comm_nccl::{Capabilities, Device, Library};

use super::config::{DeviceConfig, DevicePath};

/// The size of an encoded report in bytes. It is fixed, so that one all-gather exchanges all
/// reports.
pub(super) const REPORT_BYTES: usize = 512;
const OBSTACLE_BYTES: usize = REPORT_BYTES - 3 - 2;

/// The device and the library of this rank.
#[derive(Debug)]
pub(super) struct LocalDevice {
    pub(super) device: Result<Device>,
    /// `None` if NCCL is not requested, or there is no device.
    pub(super) nccl: Option<Result<(Library, Capabilities)>>,
}

/// A rank's report on its device and its library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) path: DevicePath,
    pub(super) has_device: bool,
    pub(super) has_nccl: bool,
    /// The reason why the device or the library is missing.
    pub(super) obstacle: String,
}

impl LocalDevice {
    /// Opens the device, and loads NCCL unless `config` requests the staged path.
    pub(super) fn find(config: &DeviceConfig) -> Self {
        let device = config.device.open();
        let load = |device: &Device| {
            let library = config.load()?;
            let capabilities = Capabilities::of(&library, device)?;
            Ok((library, capabilities))
        };
        let wanted = device.as_ref().ok().filter(|_| config.path != DevicePath::Staged);
        let nccl = wanted.map(load);
        Self { device, nccl }
    }

    pub(super) fn report(&self, path: DevicePath) -> Report {
        let obstacle = self.device.as_ref().err().or(self.nccl.as_ref().and_then(|nccl| nccl.as_ref().err()));
        let (has_device, has_nccl) = (self.device.is_ok(), matches!(self.nccl, Some(Ok(_))));
        Report { path, has_device, has_nccl, obstacle: obstacle.map(message).unwrap_or_default() }
    }
}

/// Returns the message of an error on one line, without the name of a missing backend.
pub(super) fn message(error: &Error) -> String {
    let message = match error {
        Error::BackendUnavailable { detail, .. } => detail.clone(),
        Error::Invalid(invalid) => invalid.to_string(),
        other => other.to_string(),
    };
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Report {
    /// Encodes the report. An obstacle that does not fit is truncated.
    pub(super) fn encode(&self) -> [u8; REPORT_BYTES] {
        let path = DevicePath::ALL.iter().position(|path| *path == self.path).unwrap_or(0);
        let mut to = Writer::new();
        to.size::<u8>(path).put(u8::from(self.has_device)).put(u8::from(self.has_nccl));
        to.text::<u16>(&self.obstacle, OBSTACLE_BYTES);
        to.into_array()
    }

    /// Decodes the report of another rank, which is padded with zeros.
    pub(super) fn decode(bytes: &[u8; REPORT_BYTES]) -> wire::Result<Self> {
        wire::decode(bytes, |r| {
            let path = r.code("device path", |path| DevicePath::ALL.get(usize::from(path)).copied())?;
            let (has_device, has_nccl) = (r.flag("flag of a device")?, r.flag("flag of NCCL")?);
            let obstacle = r.text::<u16>(OBSTACLE_BYTES)?.to_owned();
            r.rest();
            Ok(Self { path, has_device, has_nccl, obstacle })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports() -> [Report; 2] {
        let path = DevicePath::Auto;
        let whole = Report { path, has_device: true, has_nccl: true, obstacle: String::new() };
        let none = Report { path, has_device: false, has_nccl: false, obstacle: "there is no driver".into() };
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
