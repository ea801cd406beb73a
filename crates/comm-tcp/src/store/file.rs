//! A store in a folder, for ranks that share a file system. It needs no server.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comm_core::{Error, Result, Store};
use rustix::fs::OFlags;

use super::errors::{not_a_number, timed_out};
use super::poll_timer::PollTimer;

/// The timeout of the lock; operations of other processes are short.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum length of a file name on most file systems.
const NAME_MAX: usize = 255;
const LOCK: &str = ".lock";

/// A store in a folder that all ranks can access, with one file per key.
///
/// Only their owner can read the files. A value appears whole or not at all, because it is written
/// to a draft, which is then renamed. Operations that modify the store hold a file lock, which the
/// file system must support; a process that exits releases it. inotify reports keys that processes
/// of this host set. The folder is also polled, eventually every 50 ms, for keys that other hosts
/// set. The store is meant for rendezvous, and for little else.
///
/// Only [`Store::delete`] removes keys. The keys of an earlier run remain, so give each run its own
/// folder or a [`PrefixStore`](comm_core::PrefixStore).
#[derive(Debug)]
pub struct FileStore {
    folder: PathBuf,
}

impl FileStore {
    /// Opens the store in this folder, which is created if it does not exist.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder can neither be used nor created.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| failed("create the folder", &folder, error))?;
        Ok(Self { folder })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a key's file. Its name does not begin with a dot, unlike those of other
    /// files.
    fn path(&self, key: &str) -> Result<PathBuf> {
        let mut name = String::with_capacity(key.len());
        for byte in key.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
                other => name.push_str(&format!("%{other:02X}")),
            }
        }
        if name.is_empty() {
            // No other key has this name.
            name.push('%');
        }
        if name.len() > NAME_MAX {
            let reason =
                format!("its file name would have {} bytes; at most {NAME_MAX} are possible", name.len());
            return Err(Error::setting("key", key, reason));
        }
        Ok(self.folder.join(name))
    }

    /// Locks the folder until the file is dropped.
    fn lock(&self, key: &str) -> Result<File> {
        let path = self.folder.join(LOCK);
        let options = open_options().create(true).truncate(false).write(true).open(&path);
        let file = options.map_err(|error| failed("open", &path, error))?;
        let mut timer = PollTimer::new(LOCK_TIMEOUT);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(failed("lock", &path, error)),
                Err(TryLockError::WouldBlock) if !timer.wait() => return Err(timed_out(key, LOCK_TIMEOUT)),
                Err(TryLockError::WouldBlock) => {}
            }
        }
    }

    /// Returns the value of a key, if it exists.
    fn try_read(path: &Path) -> Result<Option<Vec<u8>>> {
        match read(path) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", path, error)),
        }
    }

    /// Puts a value in place. The lock must be held.
    fn put(&self, path: &Path, value: &[u8]) -> Result<()> {
        let (draft, mut file) = self.draft()?;
        let written = file.write_all(value).and_then(|()| fs::rename(&draft, path));
        written.map_err(|error| {
            drop(fs::remove_file(&draft));
            failed("write", path, error)
        })
    }

    /// Creates a file that no other operation writes to.
    fn draft(&self) -> Result<(PathBuf, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            // Processes of other hosts may have the same pid.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = self.folder.join(format!(".draft-{}-{number}", std::process::id()));
            match open_options().create_new(true).write(true).open(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("create", &path, error)),
            }
        }
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let path = self.path(key)?;
        let _lock = self.lock(key)?;
        self.put(&path, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let path = self.path(key)?;
        let mut timer = PollTimer::watching(&self.folder, timeout);
        loop {
            if let Some(value) = Self::try_read(&path)? {
                return Ok(value);
            }
            if !timer.wait() {
                return Err(timed_out(key, timeout));
            }
        }
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let path = self.path(key)?;
        let _lock = self.lock(key)?;
        let old = Self::try_read(&path)?.unwrap_or_else(|| b"0".to_vec());
        let number = std::str::from_utf8(&old).ok().and_then(|text| text.parse::<i64>().ok());
        let sum =
            number.and_then(|number| number.checked_add(amount)).ok_or_else(|| not_a_number(key, &old))?;
        self.put(&path, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let path = self.path(key)?;
        let _lock = self.lock(key)?;
        let value = Self::try_read(&path)?.unwrap_or_default();
        if value != expected {
            return Ok(value);
        }
        self.put(&path, desired)?;
        Ok(desired.to_vec())
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let mut timer = PollTimer::watching(&self.folder, timeout);
        for key in keys {
            let path = self.path(key)?;
            while !path.try_exists().map_err(|error| failed("check for", &path, error))? {
                if !timer.wait() {
                    return Err(timed_out(key, timeout));
                }
            }
        }
        Ok(())
    }

    fn delete(&self, key: &str) -> Result<bool> {
        let path = self.path(key)?;
        let _lock = self.lock(key)?;
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("remove", &path, error)),
        }
    }

    fn num_keys(&self) -> Result<u64> {
        let listed = fs::read_dir(&self.folder).and_then(|entries| {
            let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
            names.collect::<io::Result<Vec<_>>>()
        });
        let names = listed.map_err(|error| failed("list", &self.folder, error))?;
        Ok(names.iter().filter(|name| !name.as_encoded_bytes().starts_with(b".")).count() as u64)
    }
}

/// Returns options to open files that only their owner can read, without waiting for the other end
/// of a pipe.
fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    options
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_options().read(true).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is not a regular file"));
    }
    let mut value = Vec::new();
    file.read_to_end(&mut value)?;
    Ok(value)
}

fn failed(doing: &str, path: &Path, error: io::Error) -> Error {
    Error::io(format!("{doing} {}", path.display()), error)
}
