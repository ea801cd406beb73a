//! How the side for devices is made.

use std::str::FromStr;
use std::time::Duration;

use comm_core::{DEFAULT_TIMEOUT, Error, Result};
use comm_nccl::{Device, Library, NcclConfig, Search};

use super::staging::StagedCommunicator;

/// In which way buffers on devices are communicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DevicePath {
    /// By NCCL. If a rank lacks it, or two ranks are on one device and do not all tell NCCL so
    /// ([`Library::shares_devices`]), that is an error on every rank.
    #[default]
    Nccl,
    /// Through pinned memory of the host: slower where NCCL would do, and possible without it.
    Staged,
    /// By NCCL if every rank can, and else staged on all of them. Which it was is logged, with the reason, and can be asked for.
    Auto,
}

impl DevicePath {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Nccl, Self::Staged, Self::Auto];

    /// A short name: `nccl`, `staged` or `auto`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::Staged => "staged",
            Self::Auto => "auto",
        }
    }
}

impl std::fmt::Display for DevicePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DevicePath {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|path| path.name() == name);
        known.ok_or_else(|| Error::setting("device path", name, "it must be nccl, staged or auto"))
    }
}

/// Which device is this process's.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// The one that [`Device::from_env`] finds.
    #[default]
    FromEnv,
    /// That of the process with this number on its host; see [`Device::for_local_rank`].
    LocalRank(usize),
    /// The one with this number.
    Ordinal(usize),
    /// One that is open already.
    Opened(Device),
}

impl DeviceChoice {
    pub(super) fn open(&self) -> Result<Device> {
        match self {
            Self::FromEnv => Device::from_env(),
            Self::LocalRank(local_rank) => Device::for_local_rank(*local_rank),
            Self::Ordinal(ordinal) => Device::open(*ordinal),
            Self::Opened(device) => Ok(device.clone()),
        }
    }
}

/// How the side for devices is made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// In which way buffers are communicated. Equal on every rank.
    pub path: DevicePath,
    /// Which device is this process's.
    pub device: DeviceChoice,
    /// Where NCCL is loaded from, if not from where the environment says.
    pub library: Option<Search>,
    /// How NCCL's communicator is made, if not with defaults. Its group is that of the host's side, and its failure that of both, whatever
    /// it says.
    pub nccl: Option<NcclConfig>,
    /// How many bytes go through the host at a time where that is the way; rank 0's count.
    pub piece_bytes: usize,
    /// How long the ranks may take to agree and to be connected.
    pub timeout: Duration,
}

impl Default for DeviceConfig {
    /// By NCCL, with the device and the library that the environment names.
    fn default() -> Self {
        Self {
            path: DevicePath::default(),
            device: DeviceChoice::default(),
            library: None,
            nccl: None,
            piece_bytes: StagedCommunicator::PIECE_BYTES,
            timeout: DEFAULT_TIMEOUT,
        }
    }
}

impl DeviceConfig {
    /// The default configuration, with another path.
    #[must_use]
    pub fn with_path(path: DevicePath) -> Self {
        Self { path, ..Self::default() }
    }

    pub(super) fn load(&self) -> Result<Library> {
        self.library.as_ref().map_or_else(Library::from_env, Library::load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_by_their_names() {
        for path in DevicePath::ALL {
            assert_eq!(path.to_string().parse::<DevicePath>().ok(), Some(path));
        }
        assert!("Nccl".parse::<DevicePath>().is_err_and(|error| error.to_string().contains("\"Nccl\"")));
    }
}
