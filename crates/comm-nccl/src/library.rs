//! The loaded NCCL.

use std::sync::Arc;

use comm_core::Result;
use nccl_sys::{Nccl, Search, Version};

use crate::error;

/// NCCL, loaded. Clones are the same library; all threads may share it.
#[derive(Debug, Clone)]
pub struct Library {
    nccl: Arc<Nccl>,
}

impl Library {
    /// Loads NCCL from where the environment says: the path in `COMM_NCCL_PATH`, or else where the system's loader
    /// finds it.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable), with every path that was tried.
    pub fn from_env() -> Result<Self> {
        Self::load(&Search::from_env())
    }

    /// Loads NCCL from where `search` says.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable), with every path that was tried.
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

    pub(crate) fn nccl(&self) -> &Arc<Nccl> {
        &self.nccl
    }
}
