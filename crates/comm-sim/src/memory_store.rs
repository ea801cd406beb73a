//! A store in memory.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{Error, LastWill, Presence, Result, Store};

use crate::store_table::{RegisteredWill, StoreTable, timed_out};

/// A store in the memory of this process, whose clones share their keys. It executes last wills.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<StoreTable>,
    changed: Condvar,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, StoreTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table, and wakes the threads that wait for keys.
    fn change<R>(&self, change: impl FnOnce(&mut StoreTable) -> R) -> R {
        let changed = change(&mut self.table());
        self.changed.notify_all();
        changed
    }
}

impl Store for MemoryStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.change(|table| table.set(key, value));
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.wait(&[key], timeout)?;
        Ok(self.0.table().get(key).cloned().unwrap_or_default())
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.0.change(|table| table.add(key, amount))
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        Ok(self.0.change(|table| table.compare_set(key, expected, desired)))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let missing = |table: &mut StoreTable| !table.has_all(keys);
        let waited = self.0.changed.wait_timeout_while(self.0.table(), timeout, missing);
        let (table, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(table);
        if outcome.timed_out() { Err(timed_out(keys, timeout)) } else { Ok(()) }
    }

    fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.0.table().delete(key))
    }

    fn num_keys(&self) -> Result<u64> {
        Ok(self.0.table().len() as u64)
    }

    fn register_last_will(
        &self,
        will: &LastWill<'_>,
        watch: &str,
        _: Duration,
    ) -> Result<Option<Box<dyn Presence>>> {
        let (store, client) = UnixStream::pair().map_err(|error| Error::io("watch a key", error))?;
        self.0.table().watch(watch, store);
        let shared = Arc::clone(&self.0);
        Ok(Some(Box::new(MemoryPresence { shared, will: will.into(), watch: watch.to_owned(), client })))
    }
}

#[derive(Debug)]
struct MemoryPresence {
    shared: Arc<Shared>,
    will: RegisteredWill,
    watch: String,
    client: UnixStream,
}

impl Presence for MemoryPresence {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }

    fn poll(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.shared.table().get(&self.watch).cloned())
    }
}

impl Drop for MemoryPresence {
    fn drop(&mut self) {
        self.shared.change(|table| table.execute(&self.will));
    }
}
