//! Functions of the program that are called when its group has failed.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The abort hooks of a group, by their numbers. The Python part keeps them in a dict, which
/// outlives a connection.
pub(crate) struct AbortHooks(Py<PyDict>);

impl AbortHooks {
    pub(crate) fn new(hooks: Py<PyDict>) -> Self {
        Self(hooks)
    }

    /// Calls all of them. An exception of one is printed, since another error is being reported.
    pub(crate) fn call(&self) {
        Python::attach(|py| {
            // The list is a copy, because a hook may remove itself.
            for hook in self.0.bind(py).values() {
                if let Err(error) = hook.call0() {
                    error.write_unraisable(py, Some(&hook));
                }
            }
        });
    }
}
