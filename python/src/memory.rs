//! Memory for tensors that other ranks of the host read in place.

use comm::Buffer;
use pyo3::prelude::*;

/// Memory that is freed when Python drops the object.
///
/// It is accessed by its address alone, as that of all tensors is.
#[pyclass(frozen, module = "comm_torch._comm")]
pub(crate) struct Memory {
    address: usize,
    bytes: usize,
    #[allow(dead_code, reason = "it is only dropped")]
    buffer: Buffer<u8>,
}

impl Memory {
    pub(crate) fn new(mut buffer: Buffer<u8>) -> Self {
        let address = buffer.as_mut_ptr().expose_provenance();
        Self { address, bytes: buffer.len(), buffer }
    }
}

#[pymethods]
impl Memory {
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.bytes
    }
}
