//! Temporary memory of calls.

use comm_core::Allocation;

/// Memory that is kept from call to call: on the heap, and where other ranks read what is sent from it in place.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    heap: Vec<u8>,
    staged: Option<Allocation>,
}

impl Scratch {
    /// So many bytes on the heap, or more.
    #[inline]
    pub(super) fn on_heap(&mut self, len: usize) -> &mut [u8] {
        grown(&mut self.heap, len)
    }

    /// So many bytes, or more, which other ranks read in place if they can.
    pub(super) fn staged(&mut self, len: usize, stage: &Stage) -> &mut [u8] {
        if self.staged.as_ref().map_or(0, |staged| staged.bytes().len()) < len {
            // What is too small goes first, so that both need not find room.
            self.staged = None;
            self.staged = (stage.0)(len);
        }
        match &mut self.staged {
            Some(staged) => staged.bytes_mut(),
            None => grown(&mut self.heap, len),
        }
    }
}

#[inline]
fn grown(heap: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if heap.len() < len {
        heap.resize(len, 0);
    }
    heap
}

/// What gives memory that other ranks read in place.
pub(super) struct Stage(pub(super) Box<dyn Fn(usize) -> Option<Allocation> + Send>);

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage").finish_non_exhaustive()
    }
}
