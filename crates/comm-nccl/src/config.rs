//! The configuration of a communicator.

use std::ffi::CString;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use comm_core::{DEFAULT_TIMEOUT, Error, Group, GroupId, Membership, Result};

use crate::handle::Setup;

/// The configuration of a communicator.
#[derive(Clone)]
#[non_exhaustive]
pub struct NcclConfig {
    /// The rank and the number of ranks.
    pub group: Group,
    /// The timeout for all ranks to arrive and for NCCL to connect them.
    pub timeout: Duration,
    /// The time for which dropping a communicator waits for enqueued work before aborting it.
    pub close_timeout: Duration,
    /// Whether NCCL calls block the host until they are enqueued. By default they do not: the
    /// communicator polls them, so that a call that does not complete ends at its deadline or by an
    /// abort. If they block, nothing can end a call that hangs within NCCL, as the first ones may
    /// while they connect.
    pub blocking: bool,
    /// The number of thread blocks that NCCL may use on the device; `None` leaves it to NCCL.
    pub ctas: Option<RangeInclusive<u32>>,
    /// A name for NCCL's logs and profilers.
    pub name: Option<String>,
}

impl std::fmt::Debug for NcclConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NcclConfig")
            .field("group", &self.group)
            .field("timeout", &self.timeout)
            .field("blocking", &self.blocking)
            .finish_non_exhaustive()
    }
}

impl NcclConfig {
    /// Creates the configuration of one rank, with defaults for the rest.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the rank is out of range.
    pub fn new(membership: Membership) -> Result<Self> {
        Ok(Self {
            group: Group::new(GroupId::WORLD, membership)?,
            timeout: DEFAULT_TIMEOUT,
            close_timeout: Duration::from_secs(10),
            blocking: false,
            ctas: None,
            name: None,
        })
    }

    /// Returns the part of the configuration that is passed to NCCL.
    pub(crate) fn setup(&self) -> Result<Setup> {
        let (min_ctas, max_ctas) = self.ctas.clone().map(RangeInclusive::into_inner).unzip();
        if let (Some(min), Some(max)) = (min_ctas, max_ctas)
            && (min == 0 || min > max)
        {
            return Err(Error::setting(
                "ctas",
                format!("{min}..={max}"),
                "it must be a range that starts at 1 or above",
            ));
        }
        let name = self.name.as_ref().map(|name| {
            CString::new(name.as_str())
                .map_err(|_| Error::setting("name", name, "it must not contain a zero byte"))
        });
        let name = name.transpose()?.map(Arc::new);
        Ok(Setup { blocking: self.blocking, min_ctas, max_ctas, name })
    }
}
