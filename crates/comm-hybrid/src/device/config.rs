//! The configuration of the communicator for device buffers.

use std::str::FromStr;
use std::time::Duration;

use comm_core::{DEFAULT_TIMEOUT, Error, Result};
use comm_nccl::{Device, Library, NcclConfig, Search};

use super::staging::StagedCommunicator;

/// The path of device buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DevicePath {
    /// NCCL. It is an error on every rank if a rank lacks NCCL, or if two ranks are on one device
    /// and not all of them allow NCCL to share it ([`Library::shares_devices`]).
    #[default]
    Nccl,
    /// Through pinned host memory. This is slower than NCCL, but works without it.
    Staged,
    /// NCCL if every rank can use it, and otherwise staged on all of them. The decision and its
    /// reason are logged and can be queried.
    Auto,
}

impl DevicePath {
    /// All paths.
    pub const ALL: [Self; 3] = [Self::Nccl, Self::Staged, Self::Auto];

    /// Returns a short name: `nccl`, `staged` or `auto`.
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

/// The device of this process.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// The device that [`Device::from_env`] returns.
    #[default]
    FromEnv,
    /// The device of the process with this local rank; see [`Device::for_local_rank`].
    LocalRank(usize),
    /// The device with this ordinal.
    Ordinal(usize),
    /// An open device.
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

/// The configuration of the communicator for device buffers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// The path of device buffers. Equal on every rank.
    pub path: DevicePath,
    /// The device of this process.
    pub device: DeviceChoice,
    /// Where to find the NCCL library; `None` for the search that the environment configures.
    pub library: Option<Search>,
    /// The configuration of NCCL's communicator; `None` for the default. The group of the host
    /// communicator replaces its group.
    pub nccl: Option<NcclConfig>,
    /// The number of bytes that are staged through the host at a time; rank 0's value applies.
    pub piece_bytes: usize,
    /// The timeout for agreeing on a path and connecting.
    pub timeout: Duration,
}

impl Default for DeviceConfig {
    /// NCCL, with the device and the library that the environment names.
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
    /// Returns the default configuration with another path.
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
