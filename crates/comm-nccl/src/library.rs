//! The loaded NCCL.

use std::sync::Arc;

use comm_core::Result;
use nccl_sys::{Nccl, Search, Version};

use crate::{environment, error};

/// From this version on, NCCL takes several ranks on one device if it is told so.
pub(crate) const SHARING_SINCE: Version = Version::new(2, 30, 3);

/// NCCL, loaded. Clones are the same library; all threads may share it.
#[derive(Debug, Clone)]
pub struct Library {
    nccl: Arc<Nccl>,
}

impl Library {
    /// Loads NCCL from where the environment says: the path in `COMM_NCCL_PATH`, or else where the
    /// system's loader finds it.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable), with every path that
    /// was tried.
    pub fn from_env() -> Result<Self> {
        Self::load(&Search::from_env())
    }

    /// Loads NCCL from where `search` says.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable), with every path that
    /// was tried.
    pub fn load(search: &Search) -> Result<Self> {
        let nccl = Nccl::load(search).map_err(error::not_loaded)?;
        tracing::debug!(version = %nccl.version(), path = %nccl.path().display(), "loaded NCCL");
        Ok(Self { nccl: Arc::new(nccl) })
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.nccl.version()
    }

    /// The file that it was loaded from.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        self.nccl.path()
    }

    /// Whether it takes several ranks on one device, as far as this process says: from version
    /// 2.30.3 on, and with `NCCL_MULTI_RANK_GPU_ENABLE=1` in the environment of every rank.
    #[must_use]
    pub fn shares_devices(&self) -> bool {
        self.version() >= SHARING_SINCE && environment::devices_may_be_shared()
    }

    pub(crate) fn nccl(&self) -> &Arc<Nccl> {
        &self.nccl
    }
}
