//! CUDA devices.

use std::sync::Arc;

use comm_core::{Error, Result};
use cudarc::driver::{CudaContext, DriverError, sys};

use crate::{Stream, environment, error, probe};

/// A GPU that this process can use. Clones refer to the same device, which can be used from several
/// threads.
#[derive(Debug, Clone)]
pub struct Device {
    context: Arc<CudaContext>,
}

impl Device {
    /// Returns the number of devices that this process can use, which `CUDA_VISIBLE_DEVICES`
    /// limits.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if there is no usable driver.
    pub fn count() -> Result<usize> {
        probe::driver()?;
        let count = CudaContext::device_count().or_else(|error| match error {
            DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE) => Ok(0),
            error => Err(error::unavailable(error::CUDA, format!("the driver does not start: {error}"))),
        })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Opens the device with this number.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if there is no driver or no device at all; [`Error::Invalid`]
    /// if there is no device of this number; [`Error::Backend`] if the driver returns an error.
    pub fn open(ordinal: usize) -> Result<Self> {
        let count = Self::some()?;
        if ordinal >= count {
            let reason = format!("this process can see {count} devices, numbered from 0");
            return Err(Error::setting("device", ordinal.to_string(), reason));
        }
        let context = CudaContext::new(ordinal).map_err(error::cuda("open the device"))?;
        Ok(Self { context })
    }

    /// Opens the device for the local rank of this process: the launcher's `LOCAL_RANK`,
    /// `OMPI_COMM_WORLD_LOCAL_RANK`, `MPI_LOCALRANKID` or `SLURM_LOCALID`, or 0 if none of them is
    /// set.
    ///
    /// # Errors
    /// As [`Device::for_local_rank`]; [`Error::Invalid`] for a variable that is not a number.
    pub fn from_env() -> Result<Self> {
        Self::for_local_rank(environment::local_rank()?)
    }

    /// Opens the device for the process with this rank on its host: the rank modulo the number of
    /// visible devices. A process that can see only one device uses that one.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn for_local_rank(local_rank: usize) -> Result<Self> {
        Self::open(local_rank % Self::some()?)
    }

    /// Returns the device of a context of cudarc.
    #[must_use]
    pub const fn from_context(context: Arc<CudaContext>) -> Self {
        Self { context }
    }

    /// Returns the number of devices, or an error if there is none.
    fn some() -> Result<usize> {
        match Self::count()? {
            0 => Err(error::unavailable(error::CUDA, "this process can see no device")),
            count => Ok(count),
        }
    }

    /// Returns the number of the device among the visible ones.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// Returns the UUID, 16 bytes that identify the device on every host.
    ///
    /// # Errors
    /// [`Error::Backend`] if the driver returns an error.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let uuid = self.context.uuid().map_err(error::cuda("ask for the device's UUID"))?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Returns the name of a device with this [`uuid`](Self::uuid), as `nvidia-smi -L` writes it.
    #[must_use]
    pub fn name_of(uuid: &[u8; 16]) -> String {
        let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &digits[range]);
        format!("GPU-{a}-{b}-{c}-{d}-{e}")
    }

    /// Returns the compute capability, such as `(9, 0)`.
    ///
    /// # Errors
    /// [`Error::Backend`] if the driver returns an error.
    pub fn compute_capability(&self) -> Result<(i32, i32)> {
        self.context.compute_capability().map_err(error::cuda("ask for the device's compute capability"))
    }

    /// Creates a stream that does not synchronize with other streams, including the default stream.
    ///
    /// # Errors
    /// [`Error::Backend`] if the driver returns an error.
    pub fn new_stream(&self) -> Result<Stream> {
        let stream = self.context.new_stream().map_err(error::cuda("create a stream"))?;
        Ok(Stream::from_cudarc(stream))
    }

    /// Returns the context, for calls of cudarc.
    #[must_use]
    pub const fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes this device current in this thread.
    pub(crate) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(error::cuda("bind the device to a thread"))
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.context == other.context
    }
}

impl Eq for Device {}
