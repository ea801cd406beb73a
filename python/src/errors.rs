//! Turns errors into Python exceptions.

use comm::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// The class of the exceptions, which derives from one of PyTorch.
static COMM_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Returns the exception for an error: a `comm_torch.CommError` with the kind of the error and the
/// ranks at fault.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let class = COMM_ERROR.import(py, "comm_torch.errors", "CommError");
    let instance = class.and_then(|class| class.call1((error.to_string(), kind(error), ranks(error))));
    instance.map_or_else(
        |_| PyRuntimeError::new_err(error.to_string()),
        |instance| PyErr::from_value(instance.into_any()),
    )
}

/// Returns a name for the kind of an error, which programs may compare.
pub(crate) fn kind(error: &Error) -> &'static str {
    match error.root_cause() {
        Error::Invalid(_) => "invalid",
        Error::PeerLost { .. } => "peer_lost",
        Error::Timeout { .. } => "timeout",
        Error::Desync(_) => "desync",
        Error::Aborted { .. } => "aborted",
        Error::Handshake { .. } => "handshake",
        Error::Io { .. } => "io",
        Error::NotConnected(_) => "not_connected",
        Error::TooFewRanks { .. } => "too_few_ranks",
        Error::Cancelled => "cancelled",
        _ => "internal",
    }
}

/// Returns the ranks of the group that the error names.
fn ranks(error: &Error) -> Vec<usize> {
    match error.root_cause() {
        Error::PeerLost { peer, .. } => vec![*peer],
        Error::Timeout { waiting_for, .. } => waiting_for.clone(),
        Error::Aborted { by, .. } => vec![*by],
        Error::Desync(desync) => vec![desync.rank, desync.peer],
        _ => Vec::new(),
    }
}
