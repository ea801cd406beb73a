//! What rows have in common: what is printed of it, and how bandwidth is counted.

use comm::{DType, ReduceOp};

/// What was measured, in a table of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Label {
    pub(crate) name: &'static str,
    pub(crate) ranks: usize,
    /// Nothing if there is no data, or only bytes.
    pub(crate) dtype: Option<DType>,
    /// Nothing unless it reduces.
    pub(crate) op: Option<ReduceOp>,
    /// Nothing unless it is rooted.
    pub(crate) root: Option<usize>,
    /// Behind the name in a title.
    pub(crate) place: &'static str,
    /// Whether the communicator allocates the buffers.
    pub(crate) alloc: bool,
    /// By what the bandwidth that a caller sees is multiplied.
    pub(crate) bus_factor: f64,
}

impl Label {
    /// How many elements a size has.
    pub(crate) fn count(&self, bytes: usize) -> usize {
        bytes / self.dtype.map_or(1, DType::size)
    }
}
