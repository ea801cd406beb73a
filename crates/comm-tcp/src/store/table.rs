//! The keys and values of a store, and the connections that wait for keys. This module does no I/O.

use std::collections::HashMap;

use super::budget::{MemoryBudget, Value};

/// The overhead of a key in bytes.
pub(super) const KEY_OVERHEAD: usize = 96;

/// A connection that waits.
pub(super) type Waiter = u64;

/// Keys and values, bounded in bytes by a budget.
#[derive(Debug)]
pub(super) struct Table {
    values: HashMap<String, Value>,
    budget: MemoryBudget,
    waiters: HashMap<String, Vec<Waiter>>,
}

/// The reason an operation changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableError {
    /// The limit of bytes is reached.
    Full,
    /// The value is not a number, or the sum overflows.
    NotANumber,
}

impl Table {
    pub(super) fn new(budget: MemoryBudget) -> Self {
        Self { values: HashMap::new(), budget, waiters: HashMap::new() }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Sets a key. The caller then wakes [`Table::take_waiters`].
    pub(super) fn set(&mut self, key: &str, value: &[u8]) -> Result<(), TableError> {
        let counted = key.len() + value.len() + KEY_OVERHEAD;
        if let Some(replaced) = self.values.get_mut(key).and_then(|old| old.replace(value, counted)) {
            return if replaced { Ok(()) } else { Err(TableError::Full) };
        }
        let value = Value::new(value, counted, &self.budget).ok_or(TableError::Full)?;
        self.values.insert(key.to_owned(), value);
        Ok(())
    }

    /// Adds to a decimal number, and returns the sum.
    pub(super) fn add(&mut self, key: &str, amount: i64) -> Result<i64, TableError> {
        let old = self.get(key).map_or(Some(0), |value| std::str::from_utf8(value).ok()?.parse().ok());
        let sum: i64 = old.and_then(|old: i64| old.checked_add(amount)).ok_or(TableError::NotANumber)?;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    /// Sets a key if its value is `expected`; a missing key counts as an empty value. Returns
    /// whether it was set.
    pub(super) fn compare_set(
        &mut self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<bool, TableError> {
        let equal = self.get(key).map_or(&[][..], |value| value) == expected;
        if equal {
            self.set(key, desired)?;
        }
        Ok(equal)
    }

    /// Removes a key and returns whether it existed.
    pub(super) fn delete(&mut self, key: &str) -> bool {
        self.values.remove(key).is_some()
    }

    /// Adds a waiter for a key.
    pub(super) fn wait(&mut self, key: &str, waiter: Waiter) {
        self.waiters.entry(key.to_owned()).or_default().push(waiter);
    }

    /// Removes a waiter for a key, if it waits for one.
    pub(super) fn stop_waiting(&mut self, key: Option<&str>, waiter: Waiter) {
        let Some(key) = key else { return };
        if let Some(waiters) = self.waiters.get_mut(key) {
            waiters.retain(|&other| other != waiter);
            if waiters.is_empty() {
                self.waiters.remove(key);
            }
        }
    }

    /// Removes and returns the waiters for a key, in the order in which they came.
    pub(super) fn take_waiters(&mut self, key: &str) -> Vec<Waiter> {
        self.waiters.remove(key).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(bytes_max: usize) -> Table {
        Table::new(MemoryBudget::new(bytes_max))
    }

    fn value<'a>(table: &'a Table, key: &str) -> Option<&'a [u8]> {
        table.get(key).map(|value| &**value)
    }

    #[test]
    fn a_missing_key_equals_an_empty_value() {
        let mut table = table(1000);
        assert_eq!(table.compare_set("k", b"old", b"new"), Ok(false));
        assert_eq!(value(&table, "k"), None);
        assert_eq!(table.compare_set("k", b"", b"new"), Ok(true));
        assert_eq!(table.compare_set("k", b"", b"newer"), Ok(false));
        assert_eq!(value(&table, "k"), Some(&b"new"[..]));
    }

    #[test]
    fn sums_are_decimal_values() {
        let mut table = table(1000);
        assert_eq!(table.add("n", -3), Ok(-3));
        assert_eq!(value(&table, "n"), Some(&b"-3"[..]));
        table.set("n", b"41").unwrap();
        assert_eq!(table.add("n", 1), Ok(42));
        table.set("n", b"seven").unwrap();
        assert_eq!(table.add("n", 1), Err(TableError::NotANumber));
        table.set("n", i64::MAX.to_string().as_bytes()).unwrap();
        assert_eq!(table.add("n", 1), Err(TableError::NotANumber));
    }

    #[test]
    fn bytes_are_bounded_and_released() {
        let mut table = table(10 + KEY_OVERHEAD);
        table.set("key", b"1234567").unwrap();
        assert_eq!(table.set("k", b""), Err(TableError::Full));
        assert_eq!(table.set("key", b"12345678"), Err(TableError::Full));
        assert_eq!(value(&table, "key"), Some(&b"1234567"[..]));
        assert!(table.delete("key"));
        assert!(!table.delete("key"));
        table.set("0123456789", b"").unwrap();
    }

    #[test]
    fn waiters_are_taken_once_and_in_order() {
        let mut table = table(1000);
        for waiter in [5, 3, 8] {
            table.wait("k", waiter);
        }
        table.stop_waiting(Some("k"), 3);
        table.stop_waiting(Some("other"), 3);
        table.stop_waiting(None, 8);
        assert_eq!(table.take_waiters("k"), [5, 8]);
        assert_eq!(table.take_waiters("k"), []);
    }
}
