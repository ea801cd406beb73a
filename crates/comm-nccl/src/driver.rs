//! The CUDA driver of this host.

use comm_core::Result;
use cudarc::driver::result::device;

use crate::{Device, error, probe};

/// The CUDA driver of this host and the devices that this process can use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Driver {
    /// The newest version of CUDA that the driver supports, such as `(12, 4)`.
    pub version: (u32, u32),
    /// The names of the devices that this process can use, by ordinal.
    pub devices: Vec<String>,
}

impl Driver {
    /// Loads the driver and asks it. This starts the driver, but uses no memory of devices.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable) if there is no usable
    /// driver; [`Error::Backend`](comm_core::Error::Backend) if it returns an error.
    pub fn find() -> Result<Self> {
        let count = i32::try_from(Device::count()?).unwrap_or(i32::MAX);
        let name = |ordinal| device::get_name(device::get(ordinal)?);
        let devices = (0..count).map(name).collect::<Result<_, _>>();
        let devices = devices.map_err(error::cuda("ask for the names of devices"))?;
        let version = probe::version()?;
        // The driver writes 12.4 as 12040.
        Ok(Self { version: (version / 1000, version % 1000 / 10), devices })
    }
}
