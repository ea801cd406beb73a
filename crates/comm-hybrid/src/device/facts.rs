//! What a rank tells the others of its device and its NCCL, before they decide on a way together.

use comm_core::{Error, Result};
use comm_nccl::{Device, Library, Version};

use super::config::{DeviceConfig, DevicePath};

/// What every rank says takes so many bytes, so that one call brings all to everybody.
pub(super) const FACTS_BYTES: usize = 512;
const WORDS_BYTES: usize = FACTS_BYTES - 1 - 1 - 16 - 1 - 12 - 1 - 2;

/// What a rank says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) path: DevicePath,
    /// The device, wherever it is; `None` if there is none.
    pub(super) uuid: Option<[u8; 16]>,
    /// The version of NCCL; `None` if it was not asked for, or is missing.
    pub(super) version: Option<Version>,
    /// Whether NCCL takes several ranks on one device, as far as this rank says.
    pub(super) may_share: bool,
    /// Why the device or the library is missing.
    pub(super) obstacle: String,
}

/// What this rank has to communicate with.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) device: Result<Device>,
    /// `None` if nobody asked for it.
    pub(super) library: Option<Result<Library>>,
}

impl Means {
    /// Looks what there is.
    pub(super) fn find(config: &DeviceConfig) -> Self {
        let device = config.device.open();
        let wanted = config.path != DevicePath::Staged && device.is_ok();
        Self { device, library: wanted.then(|| config.load()) }
    }

    /// What there is to say of it.
    pub(super) fn facts(&self, path: DevicePath) -> Facts {
        let uuid = self.device.as_ref().map_err(Clone::clone).and_then(Device::uuid);
        let library = match &self.library {
            Some(Ok(library)) => Some(library),
            _ => None,
        };
        let may_share = library.is_some_and(Library::shares_devices);
        let version = library.map(Library::version);
        let missing = [uuid.as_ref().err(), self.library.as_ref().and_then(|library| library.as_ref().err())];
        let obstacle = missing.into_iter().flatten().map(words).collect::<Vec<_>>().join("; ");
        Facts { path, uuid: uuid.ok(), version, may_share, obstacle }
    }
}

/// What is missing, on one line.
fn words(error: &Error) -> String {
    let words = match error {
        // What is not available is said of all ranks together.
        Error::BackendUnavailable { detail, .. } => detail.clone(),
        other => other.to_string(),
    };
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Facts {
    /// Words that do not fit are cut.
    pub(super) fn encode(&self) -> [u8; FACTS_BYTES] {
        let path = DevicePath::ALL.iter().position(|path| *path == self.path).unwrap_or(0) as u8;
        let mut end = self.obstacle.len().min(WORDS_BYTES);
        while !self.obstacle.is_char_boundary(end) {
            end -= 1;
        }
        let Version { major, minor, patch, .. } = self.version.unwrap_or(Version::new(0, 0, 0));
        let said = [path, u8::from(self.uuid.is_some())].into_iter();
        let said = said.chain(self.uuid.unwrap_or_default()).chain([u8::from(self.version.is_some())]);
        let said = said.chain([major, minor, patch].into_iter().flat_map(u32::to_le_bytes));
        let said = said.chain([u8::from(self.may_share)]);
        let said = said.chain((end as u16).to_le_bytes()).chain(self.obstacle[..end].bytes());
        let mut bytes = [0; FACTS_BYTES];
        bytes.iter_mut().zip(said).for_each(|(place, byte)| *place = byte);
        bytes
    }

    /// What another rank said; `None` if it makes no sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let ([path, has_uuid], rest) = bytes.split_first_chunk()?;
        let (uuid, rest) = rest.split_first_chunk::<16>()?;
        let ([has_version], rest) = rest.split_first_chunk()?;
        let (numbers, rest) = rest.split_first_chunk::<12>()?;
        let ([may_share], rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let number = |index: usize| {
            let bytes = numbers[4 * index..].first_chunk();
            bytes.map(|bytes| u32::from_le_bytes(*bytes))
        };
        let version = Version::new(number(0)?, number(1)?, number(2)?);
        let words = rest.get(..usize::from(u16::from_le_bytes(*length)))?;
        Some(Self {
            path: *DevicePath::ALL.get(usize::from(*path))?,
            uuid: (*has_uuid != 0).then_some(*uuid),
            version: (*has_version != 0).then_some(version),
            may_share: *may_share != 0,
            obstacle: String::from_utf8_lossy(words).into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_as_they_were_written() {
        let facts = Facts {
            path: DevicePath::Auto,
            uuid: Some([7; 16]),
            version: Some(Version::new(2, 30, 7)),
            may_share: true,
            obstacle: String::new(),
        };
        let none = Facts {
            uuid: None,
            version: None,
            may_share: false,
            obstacle: "there is no driver".into(),
            ..facts.clone()
        };
        for facts in [facts, none] {
            assert_eq!(Facts::decode(&facts.encode()), Some(facts.clone()));
            assert_eq!(Facts::decode(&facts.encode()[..20]), None);
        }
    }

    #[test]
    fn long_words_are_cut_between_letters() {
        let facts = Facts {
            path: DevicePath::Nccl,
            uuid: None,
            version: None,
            may_share: false,
            obstacle: "ä".repeat(FACTS_BYTES),
        };
        let read = Facts::decode(&facts.encode()).map(|facts| facts.obstacle).unwrap_or_default();
        assert!(read.chars().all(|letter| letter == 'ä') && read.len() > WORDS_BYTES - 2, "{read}");
    }
}
