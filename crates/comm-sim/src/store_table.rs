//! The keys of a store, and the last wills of its clients.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use comm_core::{During, Error, LastWill, Result};

/// The keys and values of a store.
#[derive(Debug, Default)]
pub(crate) struct StoreTable {
    values: BTreeMap<String, Vec<u8>>,
    /// The watched keys, and the descriptors that become readable.
    watched: Vec<(String, UnixStream)>,
}

/// A last will that a client has registered.
#[derive(Debug)]
pub(crate) struct RegisteredWill {
    condition: (String, Vec<u8>),
    keys: Vec<String>,
    value: Vec<u8>,
}

impl From<&LastWill<'_>> for RegisteredWill {
    fn from(will: &LastWill<'_>) -> Self {
        let (key, value) = will.condition;
        let keys = will.keys.iter().map(ToString::to_string).collect();
        Self { condition: (key.to_owned(), value.to_vec()), keys, value: will.value.to_vec() }
    }
}

impl StoreTable {
    pub(crate) fn get(&self, key: &str) -> Option<&Vec<u8>> {
        self.values.get(key)
    }

    pub(crate) fn has_all<K: AsRef<str>>(&self, keys: &[K]) -> bool {
        keys.iter().all(|key| self.values.contains_key(key.as_ref()))
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        self.values.insert(key.to_owned(), value.to_vec());
        for (_, client) in self.watched.iter_mut().filter(|(watched, _)| watched == key) {
            // A client that has exited needs no wakeup.
            drop(client.write(&[1]));
        }
    }

    pub(crate) fn add(&mut self, key: &str, amount: i64) -> Result<i64> {
        let text = self.get(key).map_or(&b"0"[..], |value| value);
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
        let sum = number.and_then(|number| number.checked_add(amount));
        let sum = sum.ok_or_else(|| Error::setting(key, format!("{text:?}"), "it is not a number"))?;
        self.set(key, sum.to_string().as_bytes());
        Ok(sum)
    }

    pub(crate) fn compare_set(&mut self, key: &str, expected: &[u8], desired: &[u8]) -> Vec<u8> {
        if self.get(key).map_or(&[][..], |value| value) == expected {
            self.set(key, desired);
        }
        self.get(key).cloned().unwrap_or_default()
    }

    pub(crate) fn delete(&mut self, key: &str) -> bool {
        self.values.remove(key).is_some()
    }

    /// Makes a descriptor readable when the key is set.
    pub(crate) fn watch(&mut self, key: &str, descriptor: UnixStream) {
        self.watched.push((key.to_owned(), descriptor));
    }

    /// Executes the will of a client whose connection has ended.
    pub(crate) fn execute(&mut self, will: &RegisteredWill) {
        let (key, value) = &will.condition;
        if self.get(key) != Some(value) {
            return;
        }
        let mut value = will.value.clone();
        for key in &will.keys {
            match self.values.get(key) {
                Some(first) if *key == will.keys[0] => value.clone_from(first),
                Some(_) => {}
                None => self.set(key, &value),
            }
        }
    }
}

/// Returns the error of a wait for these keys.
pub(crate) fn timed_out(keys: &[impl AsRef<str>], after: Duration) -> Error {
    let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
    Error::Timeout { waiting_for: Vec::new(), after, during: During::Store { key: keys.join(", ") } }
}
