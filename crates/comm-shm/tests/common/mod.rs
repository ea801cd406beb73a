//! A store for tests: a folder, which processes share.
#![allow(dead_code, reason = "not every test file uses every helper")]

pub(crate) mod arena;

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{ChannelId, ChannelKind, During, Error, GroupId, Membership, Result, Store};
use comm_shm::{RendezvousConfig, SharedMemoryConfig, SharedMemoryFabric};

/// The time after which an operation counts as hanging.
pub(crate) const SOON: Duration = Duration::from_secs(30);
pub(crate) const WORLD: ChannelId = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };

/// A key is a file, which appears whole or not at all.
pub(crate) struct FolderStore(pub(crate) PathBuf);

impl FolderStore {
    fn path(&self, key: &str) -> PathBuf {
        self.0.join(key.replace('/', "_"))
    }

    /// A file of our own with this value, to be put in place.
    fn draft(&self, value: &[u8]) -> Result<PathBuf> {
        let draft = self.0.join(format!("draft-{:x}", fastrand::u128(..)));
        fs::write(&draft, value).map_err(|e| Error::io("write a draft", e))?;
        Ok(draft)
    }

    /// Keeps others from changing anything until it is dropped.
    fn lock(&self) -> Result<fs::File> {
        let failed = |e| Error::io("lock the store", e);
        let file = fs::File::create(self.0.join("lock")).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(file)
    }

    /// The value of a key, empty if there is none.
    fn look(&self, key: &str) -> Result<Vec<u8>> {
        match fs::read(self.path(key)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            read => read.map_err(|e| Error::io("read a value", e)),
        }
    }
}

impl Store for FolderStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        fs::rename(self.draft(value)?, self.path(key)).map_err(|e| Error::io("put a value in place", e))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.wait(&[key], timeout)?;
        fs::read(self.path(key)).map_err(|e| Error::io("read a value", e))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let _lock = self.lock()?;
        let old = self.look(key)?;
        let old: i64 = if old.is_empty() { 0 } else { String::from_utf8(old).unwrap().parse().unwrap() };
        let sum = old + amount;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let _lock = self.lock()?;
        let old = self.look(key)?;
        if old != expected {
            return Ok(old);
        }
        self.set(key, desired)?;
        Ok(desired.to_vec())
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let began = Instant::now();
        while !keys.iter().all(|key| self.path(key).exists()) {
            if began.elapsed() >= timeout {
                let during = During::Store { key: keys.join(", ") };
                return Err(Error::Timeout { waiting_for: vec![], after: timeout, during });
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn delete(&self, key: &str) -> Result<bool> {
        Ok(fs::remove_file(self.path(key)).is_ok())
    }
}

/// One rank that waits no longer than tests do.
pub(crate) fn config(rank: usize, world_size: usize, ring_bytes: usize) -> RendezvousConfig {
    let mut config = RendezvousConfig::new(Membership { rank, size: world_size });
    config.member.timeout = SOON;
    config.shm = rings(ring_bytes);
    config
}

pub(crate) fn rings(ring_bytes: usize) -> SharedMemoryConfig {
    let mut config = SharedMemoryConfig::default();
    config.ring_bytes = ring_bytes;
    config
}

/// Runs every configuration in a thread of its own, and returns what became of each in their order.
pub(crate) fn meet(configs: Vec<RendezvousConfig>) -> Vec<Result<SharedMemoryFabric>> {
    let folder = tempfile::tempdir().unwrap();
    let store = FolderStore(folder.path().to_owned());
    thread::scope(|scope| {
        let store = &store;
        let rank = |config| scope.spawn(move || SharedMemoryFabric::rendezvous(store, &config));
        let ranks: Vec<_> = configs.into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The channels of `n` ranks, in rank order.
pub(crate) fn world(n: usize, ring_bytes: usize) -> Vec<SharedMemoryFabric> {
    let configs = (0..n).map(|rank| config(rank, n, ring_bytes)).collect();
    meet(configs).into_iter().map(Result::unwrap).collect()
}

/// The same, where pieces of so many bytes are lent.
pub(crate) fn lending_world(n: usize, ring_bytes: usize, lend_bytes: usize) -> Vec<SharedMemoryFabric> {
    let mut configs: Vec<_> = (0..n).map(|rank| config(rank, n, ring_bytes)).collect();
    configs.iter_mut().for_each(|config| config.shm.lend_bytes = lend_bytes);
    meet(configs).into_iter().map(Result::unwrap).collect()
}

/// The same, where nothing is lent, and pieces of so many bytes are read where they lie.
pub(crate) fn showing_world(
    n: usize,
    ring_bytes: usize,
    single_copy_bytes: usize,
) -> Vec<SharedMemoryFabric> {
    let mut configs: Vec<_> = (0..n).map(|rank| config(rank, n, ring_bytes)).collect();
    for config in &mut configs {
        (config.shm.lend_bytes, config.shm.single_copy_bytes) = (usize::MAX, Some(single_copy_bytes));
    }
    meet(configs).into_iter().map(Result::unwrap).collect()
}
