//! A separate key space for each group that uses a shared store.

use std::sync::Arc;
use std::time::Duration;

use crate::{LastWill, Presence, Result, Store};

/// A part of a store: every key begins with a prefix and a slash, as in c10d's `PrefixStore`.
///
/// Groups that use one store at the same time each need their own prefix:
///
/// ```
/// # fn example(store: std::sync::Arc<dyn comm_core::Store>) -> comm_core::Result<()> {
/// use comm_core::{PrefixStore, Store};
///
/// let trainers = PrefixStore::new("trainers", store);
/// trainers.set("ready", b"yes")?; // The key in the store is "trainers/ready".
/// # Ok(())
/// # }
/// ```
///
/// Errors name the keys of the underlying store. [`Store::num_keys`] counts all of its keys.
#[derive(Clone)]
pub struct PrefixStore {
    prefix: String,
    store: Arc<dyn Store>,
}

impl PrefixStore {
    /// Creates the part of `store` with this prefix, which may be any text.
    pub fn new(prefix: impl Into<String>, store: Arc<dyn Store>) -> Self {
        Self { prefix: prefix.into(), store }
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    /// Makes a call with prefixed keys.
    fn with_keys<R>(&self, keys: &[&str], call: impl FnOnce(&[&str]) -> R) -> R {
        let keys: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        call(&keys.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl std::fmt::Debug for PrefixStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrefixStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Store for PrefixStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.set(&self.key(key), value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.store.get(&self.key(key), timeout)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.store.add(&self.key(key), amount)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.store.compare_set(&self.key(key), expected, desired)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.with_keys(keys, |keys| self.store.wait(keys, timeout))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.store.delete(&self.key(key))
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.with_keys(keys, |keys| self.store.check(keys))
    }

    fn num_keys(&self) -> Result<u64> {
        self.store.num_keys()
    }

    fn register_last_will(
        &self,
        will: &LastWill<'_>,
        watch: &str,
        timeout: Duration,
    ) -> Result<Option<Box<dyn Presence>>> {
        let LastWill { condition: (key, expected), keys, value } = *will;
        let key = self.key(key);
        self.with_keys(keys, |keys| {
            let will = LastWill { condition: (&key, expected), keys, value };
            self.store.register_last_will(&will, &self.key(watch), timeout)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A store that records its calls.
    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);

    impl Notes {
        fn note(&self, call: String) {
            self.0.lock().unwrap().push(call);
        }
    }

    impl Store for Notes {
        fn set(&self, key: &str, value: &[u8]) -> Result<()> {
            self.note(format!("set {key} {value:?}"));
            Ok(())
        }

        fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
            self.note(format!("get {key} {timeout:?}"));
            Ok(vec![7])
        }

        fn add(&self, key: &str, amount: i64) -> Result<i64> {
            self.note(format!("add {key} {amount}"));
            Ok(amount)
        }

        fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
            self.note(format!("compare_set {key} {expected:?} {desired:?}"));
            Ok(desired.to_vec())
        }

        fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
            self.note(format!("wait {keys:?} {timeout:?}"));
            Ok(())
        }

        fn delete(&self, key: &str) -> Result<bool> {
            self.note(format!("delete {key}"));
            Ok(true)
        }

        fn check(&self, keys: &[&str]) -> Result<bool> {
            self.note(format!("check {keys:?}"));
            Ok(true)
        }

        fn num_keys(&self) -> Result<u64> {
            Ok(42)
        }

        fn register_last_will(
            &self,
            will: &LastWill<'_>,
            watch: &str,
            timeout: Duration,
        ) -> Result<Option<Box<dyn Presence>>> {
            let LastWill { condition, keys, value } = will;
            self.note(format!("register_last_will {condition:?} {keys:?} {value:?} {watch} {timeout:?}"));
            Ok(None)
        }
    }

    #[test]
    fn every_call_reaches_the_store_with_prefixed_keys() {
        let notes = Arc::new(Notes::default());
        let store = PrefixStore::new("p", notes.clone());
        let time = Duration::from_secs(3);
        store.set("a", &[1]).unwrap();
        assert_eq!(store.get("a", time).unwrap(), [7]);
        assert_eq!(store.add("a", -2).unwrap(), -2);
        assert_eq!(store.compare_set("a", &[1], &[2]).unwrap(), [2]);
        store.wait(&["a", "b/c"], time).unwrap();
        assert!(store.delete("a").unwrap());
        assert!(store.check(&["a", "b"]).unwrap());
        assert_eq!(store.num_keys().unwrap(), 42);
        let will = LastWill { condition: ("a", &[1]), keys: &["b", "c"], value: &[9] };
        assert!(store.register_last_will(&will, "d", time).unwrap().is_none());
        let expected = [
            "set p/a [1]",
            "get p/a 3s",
            "add p/a -2",
            "compare_set p/a [1] [2]",
            r#"wait ["p/a", "p/b/c"] 3s"#,
            "delete p/a",
            r#"check ["p/a", "p/b"]"#,
            r#"register_last_will ("p/a", [1]) ["p/b", "p/c"] [9] p/d 3s"#,
        ];
        assert_eq!(*notes.0.lock().unwrap(), expected);
    }

    #[test]
    fn prefixes_nest() {
        let notes = Arc::new(Notes::default());
        let outer = Arc::new(PrefixStore::new("outer", notes.clone()));
        PrefixStore::new("inner", outer).delete("a").unwrap();
        assert_eq!(*notes.0.lock().unwrap(), ["delete outer/inner/a"]);
    }
}
