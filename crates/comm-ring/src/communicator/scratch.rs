//! Temporary memory of calls.

use comm_core::Allocation;

/// Memory that is reused from call to call: on the heap, and in a buffer that other ranks read in
/// place.
#[derive(Debug)]
pub(super) struct Scratch {
    source: SharedBufferSource,
    heap: Vec<u8>,
    staged: Option<Allocation>,
}

impl Scratch {
    pub(super) const fn new(source: SharedBufferSource) -> Self {
        Self { source, heap: Vec::new(), staged: None }
    }

    /// Returns at least `len` bytes. If they `are_staged`, other ranks read them in place if
    /// possible.
    #[inline]
    pub(super) fn bytes(&mut self, len: usize, are_staged: bool) -> &mut [u8] {
        if are_staged {
            self.grow_staged(len);
        }
        match &mut self.staged {
            Some(staged) if are_staged => staged.bytes_mut(),
            _ => {
                if self.heap.len() < len {
                    self.heap.resize(len, 0);
                }
                &mut self.heap
            }
        }
    }

    fn grow_staged(&mut self, len: usize) {
        if self.staged.as_ref().map_or(0, |staged| staged.bytes().len()) < len {
            // Freed first, so that both need not fit in memory.
            self.staged = None;
            self.staged = (self.source.0)(len);
        }
    }
}

/// Allocates memory that other ranks read in place.
pub(super) struct SharedBufferSource(pub(super) Box<dyn Fn(usize) -> Option<Allocation> + Send>);

impl std::fmt::Debug for SharedBufferSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedBufferSource").finish_non_exhaustive()
    }
}
