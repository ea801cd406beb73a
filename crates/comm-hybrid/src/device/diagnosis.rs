//! The cause of an abort.

use std::sync::Arc;
use std::time::Duration;

use comm_core::{Error, Failure};

/// The time to wait for the cause of an abort.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// Returns the failure of a group that caused an abort, if it becomes known within a short time: a
/// rank tells the group the cause before it aborts, and another rank that receives it may abort in
/// turn, which arrives too.
pub(super) fn behind(error: &Error, group: &Failure) -> Option<Arc<Error>> {
    if matches!(error, Error::Aborted { .. }) { group.await_cause(PATIENCE) } else { None }
}
