//! A store in memory.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{During, Error, LastWill, Presence, Result, Store};

/// A store in the memory of this process, whose clones share their keys. It executes last wills.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    values: BTreeMap<String, Vec<u8>>,
    /// The watched keys, and the descriptors that become readable.
    watched: Vec<(String, UnixStream)>,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, table: &mut Table, key: &str, value: &[u8]) {
        table.values.insert(key.to_owned(), value.to_vec());
        self.changed.notify_all();
        for (_, client) in table.watched.iter_mut().filter(|(watched, _)| watched == key) {
            // A client that has exited needs no wakeup.
            drop(client.write(&[1]));
        }
    }
}

impl Store for MemoryStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.insert(&mut self.0.table(), key, value);
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.wait(&[key], timeout)?;
        Ok(self.0.table().values.get(key).cloned().unwrap_or_default())
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let mut table = self.0.table();
        let text = table.values.get(key).map_or(&b"0"[..], |value| value);
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
        let sum = number.and_then(|number| number.checked_add(amount));
        let sum = sum.ok_or_else(|| Error::setting(key, format!("{text:?}"), "it is not a number"))?;
        self.0.insert(&mut table, key, sum.to_string().as_bytes());
        Ok(sum)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let mut table = self.0.table();
        if table.values.get(key).map_or(&[][..], |value| value) == expected {
            self.0.insert(&mut table, key, desired);
        }
        Ok(table.values.get(key).cloned().unwrap_or_default())
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let missing = |table: &mut Table| keys.iter().any(|key| !table.values.contains_key(*key));
        let waited = self.0.changed.wait_timeout_while(self.0.table(), timeout, missing);
        let (table, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(table);
        if !outcome.timed_out() {
            return Ok(());
        }
        let during = During::Store { key: keys.join(", ") };
        Err(Error::Timeout { waiting_for: Vec::new(), after: timeout, during })
    }

    fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.0.table().values.remove(key).is_some())
    }

    fn num_keys(&self) -> Result<u64> {
        Ok(self.0.table().values.len() as u64)
    }

    fn register_last_will(
        &self,
        will: &LastWill<'_>,
        watch: &str,
        _: Duration,
    ) -> Result<Option<Box<dyn Presence>>> {
        let (store, client) = UnixStream::pair().map_err(|error| Error::io("watch a key", error))?;
        let owned = |(key, value): (&str, &[u8])| (key.to_owned(), value.to_vec());
        let presence = MemoryPresence {
            shared: Arc::clone(&self.0),
            condition: owned(will.condition),
            keys: will.keys.iter().map(ToString::to_string).collect(),
            value: will.value.to_vec(),
            watch: watch.to_owned(),
            client,
        };
        self.0.table().watched.push((watch.to_owned(), store));
        Ok(Some(Box::new(presence)))
    }
}

#[derive(Debug)]
struct MemoryPresence {
    shared: Arc<Shared>,
    condition: (String, Vec<u8>),
    keys: Vec<String>,
    value: Vec<u8>,
    watch: String,
    client: UnixStream,
}

impl Presence for MemoryPresence {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }

    fn poll(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.shared.table().values.get(&self.watch).cloned())
    }
}

impl Drop for MemoryPresence {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        let (key, value) = &self.condition;
        if table.values.get(key) != Some(value) {
            return;
        }
        let mut value = self.value.clone();
        for key in &self.keys {
            match table.values.get(key) {
                Some(first) if *key == self.keys[0] => value.clone_from(first),
                Some(_) => {}
                None => self.shared.insert(&mut table, key, &value),
            }
        }
    }
}
