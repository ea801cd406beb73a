//! Handles for C callers: numbers that identify objects. Dereferencing one faults.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::record;
use crate::sync::lock;

/// A handle in C.
pub(crate) type Handle = *mut c_void;

/// No valid address of a process has these bits, so dereferencing one faults.
const TAG: usize = 0x5E << 56;

/// All objects of one kind, by handle. Handles are never reused, so that a stale one is always
/// detected.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    what: &'static str,
    kind: usize,
    entries: Mutex<Entries<T>>,
}

#[derive(Debug)]
struct Entries<T> {
    next: usize,
    live: BTreeMap<usize, Arc<T>>,
}

impl<T> Handles<T> {
    /// Creates a table. Its `kind` must differ from those of all other tables.
    pub(crate) const fn new(what: &'static str, kind: u8) -> Self {
        let entries = Mutex::new(Entries { next: 1, live: BTreeMap::new() });
        Self { what, kind: TAG | (kind as usize) << 48, entries }
    }

    pub(crate) fn insert(&self, object: Arc<T>) -> Handle {
        let mut entries = lock(&self.entries);
        let number = self.kind | entries.next << 4;
        entries.next += 1;
        entries.live.insert(number, object);
        std::ptr::without_provenance_mut(number)
    }

    /// Returns the object of `handle`. The use of a destroyed handle is recorded as a fault.
    pub(crate) fn get(&self, handle: Handle) -> Option<Arc<T>> {
        let entries = self.lock_recording_misuse(handle);
        entries.live.get(&handle.addr()).cloned()
    }

    pub(crate) fn remove(&self, handle: Handle) -> Option<Arc<T>> {
        let mut entries = self.lock_recording_misuse(handle);
        entries.live.remove(&handle.addr())
    }

    pub(crate) fn live(&self) -> usize {
        lock(&self.entries).live.len()
    }

    fn lock_recording_misuse(&self, handle: Handle) -> MutexGuard<'_, Entries<T>> {
        let entries = lock(&self.entries);
        let number = handle.addr();
        let issued = number >> 48 == self.kind >> 48 && (number & 0xFFFF_FFFF_FFFF) >> 4 < entries.next;
        if issued && !entries.live.contains_key(&number) {
            record::fault(None, &format!("a {} was used after it was destroyed", self.what));
        }
        entries
    }
}
