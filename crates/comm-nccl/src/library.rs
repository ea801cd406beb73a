//! The NCCL library.

use std::sync::Arc;

use comm_core::Result;
use nccl_sys::{Nccl, Search, Version};

use crate::{environment, error};

/// The first version of NCCL that supports several ranks on one device, if the environment allows
/// it.
pub(crate) const SHARING_SINCE: Version = Version::new(2, 30, 3);

/// The loaded NCCL library. Clones refer to the same library, which can be used from several
/// threads.
#[derive(Debug, Clone)]
pub struct Library {
    nccl: Arc<Nccl>,
}

impl Library {
    /// Loads NCCL from the path in `COMM_NCCL_PATH`, or otherwise from the search path of the
    /// system's loader.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable) with every path that was
    /// tried.
    pub fn from_env() -> Result<Self> {
        Self::load(&Search::from_env())
    }

    /// Loads NCCL as `search` describes.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable) with every path that was
    /// tried.
    pub fn load(search: &Search) -> Result<Self> {
        let nccl = Nccl::load(search).map_err(error::not_loaded)?;
        tracing::debug!(version = %nccl.version(), path = %nccl.path().display(), "loaded NCCL");
        Ok(Self { nccl: Arc::new(nccl) })
    }

    /// Returns the version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.nccl.version()
    }

    /// Returns the path of the loaded file.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        self.nccl.path()
    }

    /// Returns whether several ranks may share a device: from version 2.30.3 on, with
    /// `NCCL_MULTI_RANK_GPU_ENABLE=1` in the environment of this process. It must be set for every
    /// rank.
    #[must_use]
    pub fn shares_devices(&self) -> bool {
        self.version() >= SHARING_SINCE && environment::devices_may_be_shared()
    }

    pub(crate) fn nccl(&self) -> &Arc<Nccl> {
        &self.nccl
    }
}
