//! Settings of a communicator.

use std::time::Duration;

use comm_core::DEFAULT_TIMEOUT;

/// The memory that MPI reads and writes in a collective.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallMemoryMode {
    /// Memory of the communicator: a call copies its input there, and its result from there. A call
    /// that passes its deadline, or is aborted, returns an error, and the memory that MPI still
    /// uses is never freed.
    #[default]
    Staged,
    /// The buffers of the caller. Nothing is copied, except the input of a call in place, and
    /// elements that are converted or multiplied first. MPI cannot be made to leave this memory
    /// alone, so a call that passes its deadline, or is aborted, ends all processes of the job with
    /// `MPI_Abort`.
    Borrowed,
}

/// Settings of an [`MpiCommunicator`](crate::MpiCommunicator). The groups that are created from it
/// have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MpiConfig {
    /// Whether the ranks compare their calls before each collective, which takes one all-reduce of
    /// 16 bytes. Without it, MPI does not detect that ranks are in different calls: it hangs,
    /// returns an error, or moves the wrong elements. Must be equal on every rank.
    pub compare_calls: bool,
    /// The memory that MPI uses. May differ between ranks.
    pub memory: CallMemoryMode,
    /// The timeout of the creation of the communicator.
    pub timeout: Duration,
}

impl Default for MpiConfig {
    /// Returns the settings with compared calls, staged memory, and a timeout of
    /// [`DEFAULT_TIMEOUT`].
    fn default() -> Self {
        Self { compare_calls: true, memory: CallMemoryMode::Staged, timeout: DEFAULT_TIMEOUT }
    }
}

/// Setters, as in `MpiConfig::default().compare_calls(false)`.
impl MpiConfig {
    comm_core::setters!(compare_calls: bool, memory: CallMemoryMode, timeout: Duration);
}
