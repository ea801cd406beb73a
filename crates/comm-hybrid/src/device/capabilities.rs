//! The capabilities of a rank's device and NCCL, which it sends to the others before they choose
//! one path together.

use comm_core::wire::{self, Writer};
use comm_core::{Error, Result};
use comm_nccl::{Device, Library, Version};

use super::config::{DeviceConfig, DevicePath};

/// The size of the capabilities of a rank in bytes: fixed, so that one all-gather exchanges them.
pub(super) const CAPABILITIES_BYTES: usize = 512;
const WORDS_BYTES: usize = CAPABILITIES_BYTES - 1 - 1 - 16 - 1 - 12 - 1 - 2;

/// The capabilities of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Capabilities {
    pub(super) path: DevicePath,
    /// The UUID of its device, `None` if it has none.
    pub(super) uuid: Option<[u8; 16]>,
    /// The version of NCCL; `None` if it was not needed, or is missing.
    pub(super) version: Option<Version>,
    /// Whether NCCL accepts several ranks on one device, according to this rank.
    pub(super) may_share: bool,
    /// The reason why the device or the library is missing.
    pub(super) obstacle: String,
}

/// The device and library of this rank.
#[derive(Debug)]
pub(super) struct LocalDevice {
    pub(super) device: Result<Device>,
    /// `None` if the path does not need it.
    pub(super) library: Option<Result<Library>>,
}

impl LocalDevice {
    /// Opens the device, and loads the library if the path needs it.
    pub(super) fn find(config: &DeviceConfig) -> Self {
        let device = config.device.open();
        let wanted = config.path != DevicePath::Staged && device.is_ok();
        Self { device, library: wanted.then(|| config.load()) }
    }

    /// Returns the capabilities to send to the other ranks.
    pub(super) fn capabilities(&self, path: DevicePath) -> Capabilities {
        let uuid = self.device.as_ref().map_err(Clone::clone).and_then(Device::uuid);
        let library = match &self.library {
            Some(Ok(library)) => Some(library),
            _ => None,
        };
        let may_share = library.is_some_and(Library::shares_devices);
        let version = library.map(Library::version);
        let missing = [uuid.as_ref().err(), self.library.as_ref().and_then(|library| library.as_ref().err())];
        let obstacle = missing.into_iter().flatten().map(words).collect::<Vec<_>>().join("; ");
        Capabilities { path, uuid: uuid.ok(), version, may_share, obstacle }
    }
}

/// Returns the message of an error on one line.
fn words(error: &Error) -> String {
    let words = match error {
        // The error that all ranks return names the backend once.
        Error::BackendUnavailable { detail, .. } => detail.clone(),
        other => other.to_string(),
    };
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Capabilities {
    /// An obstacle that is too long is cut.
    pub(super) fn encode(&self) -> [u8; CAPABILITIES_BYTES] {
        let path = DevicePath::ALL.iter().position(|path| *path == self.path).unwrap_or(0);
        let Version { major, minor, patch, .. } = self.version.unwrap_or(Version::new(0, 0, 0));
        let mut to = Writer::new();
        to.size::<u8>(path).put(u8::from(self.uuid.is_some())).put(self.uuid.unwrap_or_default());
        to.put(u8::from(self.version.is_some())).put(major).put(minor).put(patch);
        to.put(u8::from(self.may_share)).text::<u16>(&self.obstacle, WORDS_BYTES);
        to.into_array()
    }

    /// Decodes the capabilities of another rank, which zeros follow.
    pub(super) fn decode(bytes: &[u8; CAPABILITIES_BYTES]) -> wire::Result<Self> {
        wire::decode(bytes, |r| {
            let path = r.code("device path", |path| DevicePath::ALL.get(usize::from(path)).copied())?;
            let (has_uuid, uuid) = (r.flag("flag of a device")?, r.get()?);
            let has_version = r.flag("flag of a version")?;
            let version = Version::new(r.get()?, r.get()?, r.get()?);
            let may_share = r.flag("flag of sharing")?;
            let obstacle = r.text::<u16>(WORDS_BYTES)?.to_owned();
            r.rest();
            let (uuid, version) = (has_uuid.then_some(uuid), has_version.then_some(version));
            Ok(Self { path, uuid, version, may_share, obstacle })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities() -> [Capabilities; 2] {
        let capabilities = Capabilities {
            path: DevicePath::Auto,
            uuid: Some([7; 16]),
            version: Some(Version::new(2, 30, 7)),
            may_share: true,
            obstacle: String::new(),
        };
        let obstacle = "there is no driver".into();
        let none =
            Capabilities { uuid: None, version: None, may_share: false, obstacle, ..capabilities.clone() };
        [capabilities, none]
    }

    comm_sim::hostile_bytes!(facts_are_read_as_they_were_written: capabilities(), |capabilities| capabilities.encode().to_vec(),
        |bytes| Capabilities::decode(bytes.try_into().ok()?).ok());

    #[test]
    fn a_long_obstacle_is_cut_between_characters() {
        let capabilities =
            Capabilities { obstacle: "ä".repeat(CAPABILITIES_BYTES), ..capabilities()[1].clone() };
        let read = Capabilities::decode(&capabilities.encode())
            .map(|capabilities| capabilities.obstacle)
            .unwrap_or_default();
        assert!(read.chars().all(|letter| letter == 'ä') && read.len() > WORDS_BYTES - 2, "{read}");
    }
}
