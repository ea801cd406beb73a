//! What is behind an abort.

use std::sync::Arc;
use std::time::Duration;

use comm_core::{Error, Failure};

/// How long to wait for the reason of an abort.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// The failure of a group behind an error that is an abort, if it shows in a short time: whoever aborts tells the reason to the
/// group before, and another rank that hears it may abort in turn, which is heard too.
pub(super) fn behind(error: &Error, group: &Failure) -> Option<Arc<Error>> {
    if matches!(error, Error::Aborted { .. }) { group.await_cause(PATIENCE) } else { None }
}
