//! A store of PyTorch, in which ranks find each other.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use comm::{During, Error, Result, Store};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The first and the longest time between two looks for keys. PyTorch's own wait logs a warning
/// when its time is over, and does not let signals be handled.
const POLL: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// A `torch.distributed.Store`.
#[derive(Debug)]
pub(crate) struct TorchStoreObject(pub(crate) Py<PyAny>);

impl TorchStoreObject {
    /// Calls a method of the store.
    fn call<'py, A, T>(&self, py: Python<'py>, method: &str, arguments: A) -> Result<T>
    where
        A: pyo3::call::PyCallArgs<'py>,
        T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
    {
        let outcome = self.0.bind(py).call_method1(method, arguments);
        let value = outcome.and_then(|value| value.extract().map_err(Into::into));
        value.map_err(|error| failed(method, &error))
    }
}

fn failed(method: &str, error: &PyErr) -> Error {
    Error::io(format!("call `{method}` of PyTorch's store"), io::Error::other(error.to_string()))
}

impl Store for TorchStoreObject {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        Python::attach(|py| {
            let outcome = self.0.bind(py).call_method1("set", (key, PyBytes::new(py, value)));
            outcome.map(drop).map_err(|error| failed("set", &error))
        })
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.wait(&[key], timeout)?;
        Python::attach(|py| self.call(py, "get", (key,)))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        Python::attach(|py| self.call(py, "add", (key, amount)))
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        Python::attach(|py| {
            let arguments = (key, PyBytes::new(py, expected), PyBytes::new(py, desired));
            self.call(py, "compare_set", arguments)
        })
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let began = Instant::now();
        let [mut pause, longest] = POLL;
        loop {
            if self.check(keys)? {
                return Ok(());
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                let during = During::Store { key: keys.join(", ") };
                return Err(Error::Timeout { waiting_for: Vec::new(), after: timeout, during });
            }
            thread::sleep(pause.min(left));
            pause = (2 * pause).min(longest);
            Python::attach(|py| py.check_signals()).map_err(|error| failed("check", &error))?;
        }
    }

    fn delete(&self, key: &str) -> Result<bool> {
        Python::attach(|py| self.call(py, "delete_key", (key,)))
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        Python::attach(|py| self.call(py, "check", (keys.to_vec(),)))
    }
}
