//! Bounds the memory that the server holds for all clients together.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts bytes up to a limit. Clones share the count.
#[derive(Debug, Clone)]
pub(super) struct MemoryBudget {
    held: Arc<AtomicUsize>,
    max: usize,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: MemoryBudget,
    bytes: usize,
}

impl MemoryBudget {
    pub(super) fn new(max: usize) -> Self {
        Self { held: Arc::default(), max }
    }

    /// The bytes that are counted now.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns a reservation of no bytes.
    pub(super) fn open(&self) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }
}

impl Reservation {
    /// Counts this many bytes from now on. Returns false, and changes nothing, if that exceeds the
    /// limit.
    pub(super) fn set(&mut self, bytes: usize) -> bool {
        let budget = &self.budget;
        let others = budget.held.load(Ordering::Relaxed).saturating_sub(self.bytes);
        let fits = bytes <= self.bytes || others.checked_add(bytes).is_some_and(|sum| sum <= budget.max);
        if fits {
            budget.held.store(others.saturating_add(bytes), Ordering::Relaxed);
            self.bytes = bytes;
        }
        fits
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A value, which may outlive its key while it is being sent.
#[derive(Debug, Clone)]
pub(super) struct Value(Arc<Stored>);

#[derive(Debug)]
struct Stored {
    bytes: Vec<u8>,
    reservation: Reservation,
}

impl Value {
    /// Copies a value that counts as `counted` bytes. Returns `None` if that exceeds the limit.
    pub(super) fn new(bytes: &[u8], counted: usize, budget: &MemoryBudget) -> Option<Self> {
        let mut reservation = budget.open();
        reservation.set(counted).then(|| Self(Arc::new(Stored { bytes: bytes.to_vec(), reservation })))
    }

    /// Replaces the bytes in place. Returns false if that exceeds the limit, and `None` if the
    /// value is being sent.
    pub(super) fn replace(&mut self, bytes: &[u8], counted: usize) -> Option<bool> {
        let stored = Arc::get_mut(&mut self.0)?;
        let fits = stored.reservation.set(counted);
        if fits {
            stored.bytes = bytes.to_vec();
        }
        Some(fits)
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_count_together_up_to_the_limit_and_until_they_are_dropped() {
        let budget = MemoryBudget::new(10);
        let (mut first, mut second) = (budget.open(), budget.open());
        assert!(first.set(6) && second.set(4) && !second.set(5) && !first.set(usize::MAX));
        assert!(first.set(5) && second.set(5));
        drop(first);
        assert!(second.set(10));
    }

    #[test]
    fn a_value_counts_as_long_as_it_is_being_sent() {
        let budget = MemoryBudget::new(10);
        let mut value = Value::new(b"old", 6, &budget).unwrap();
        assert_eq!((value.replace(b"new", 10), value.replace(b"newer", 11)), (Some(true), Some(false)));
        assert_eq!(&*value, b"new");
        let sent = value.clone();
        assert_eq!(value.replace(b"x", 1), None);
        drop(value);
        assert!(Value::new(b"", 1, &budget).is_none());
        drop(sent);
        assert!(Value::new(b"", 10, &budget).is_some());
    }
}
