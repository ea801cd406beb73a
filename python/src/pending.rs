//! The number of operations that have not ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts an operation until it is dropped.
pub(crate) struct Pending(Arc<AtomicUsize>);

impl Pending {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
