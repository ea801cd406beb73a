//! The folder of checkpoints. The order of its changes makes every checkpoint either complete or
//! absent.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::manifest::Manifest;
use crate::{Error, Result};

const MANIFEST: &str = "manifest.json";
const PREFIX: &str = "step-";

/// A folder with one folder per checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    root: PathBuf,
}

/// Identifies a folder across all hosts. Ranks with equal ids write to the same folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FolderId {
    boot: String,
    device: u64,
    inode: u64,
}

impl Folder {
    /// Creates the folder unless it exists.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).map_err(Error::io("create", root))?;
        let root = fs::canonicalize(root).map_err(Error::io("open", root))?;
        Ok(Self { root })
    }

    pub(crate) fn id(&self) -> Result<FolderId> {
        let boot_id = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(boot_id).map_err(Error::io("read", boot_id))?;
        let metadata = fs::metadata(&self.root).map_err(Error::io("read", &self.root))?;
        Ok(FolderId { boot, device: metadata.dev(), inode: metadata.ino() })
    }

    /// Returns the folder of a checkpoint.
    pub(crate) fn of(&self, step: u64) -> PathBuf {
        self.root.join(format!("{PREFIX}{step:012}"))
    }

    fn manifest_path(&self, step: u64) -> PathBuf {
        self.of(step).join(MANIFEST)
    }

    /// Returns whether there is a complete checkpoint of this step.
    pub(crate) fn has(&self, step: u64) -> bool {
        self.manifest_path(step).exists()
    }

    /// Creates an empty folder for a checkpoint. Removes the files of an interrupted save or a
    /// damaged checkpoint.
    pub(crate) fn begin(&self, step: u64) -> Result<()> {
        let folder = self.of(step);
        self.discard(step)?;
        fs::create_dir(&folder).map_err(Error::io("create", &folder))?;
        sync(&self.root)
    }

    /// Makes a checkpoint complete. All its shards must already be on disk.
    pub(crate) fn commit(&self, step: u64, manifest: &str) -> Result<()> {
        write_atomically(&self.manifest_path(step), manifest.as_bytes())
    }

    /// Returns the steps of all complete checkpoints in ascending order.
    pub(crate) fn steps(&self) -> Result<Vec<u64>> {
        let mut steps = self.all_steps()?;
        steps.retain(|step| self.has(*step));
        Ok(steps)
    }

    /// Returns the steps of all folders, including incomplete checkpoints, in ascending order.
    fn all_steps(&self) -> Result<Vec<u64>> {
        let entries = fs::read_dir(&self.root).map_err(Error::io("read", &self.root))?;
        let mut steps = Vec::new();
        for entry in entries {
            let name = entry.map_err(Error::io("read", &self.root))?.file_name();
            steps.extend(name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u64>().ok()));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// Returns the manifest of a complete checkpoint.
    pub(crate) fn manifest(&self, step: u64) -> Result<Manifest> {
        let path = self.manifest_path(step);
        let text = fs::read(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::NoSuchStep { step },
            _ => Error::io("read", &path)(error),
        })?;
        Manifest::decode(&text, &path)
    }

    /// Removes all complete checkpoints except the newest `keep` and the one of step `saved`, and
    /// all incomplete ones that are older than the newest.
    pub(crate) fn prune(&self, keep: usize, saved: u64) -> Result<()> {
        let complete = self.steps()?;
        let Some(newest) = complete.last() else { return Ok(()) };
        let kept = &complete[complete.len().saturating_sub(keep.max(1))..];
        for step in self.all_steps()? {
            if step < *newest && step != saved && !kept.contains(&step) {
                self.discard(step)?;
            }
        }
        Ok(())
    }

    /// Removes a checkpoint, first its manifest, so that a partly removed one never counts as
    /// complete.
    pub(crate) fn discard(&self, step: u64) -> Result<()> {
        let manifest = self.manifest_path(step);
        match fs::remove_file(&manifest) {
            Ok(()) => sync(&self.of(step))?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("remove", &manifest)(error)),
        }
        remove(&self.of(step))
    }
}

/// Writes a file so that it is either complete or absent, whenever the process or the machine
/// stops.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    let write = || -> io::Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(Error::io("write", path))?;
    path.parent().map_or(Ok(()), sync)
}

/// Writes a file or the entries of a folder to disk.
pub(crate) fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(Error::io("sync", path))
}

/// Removes a folder, if it exists.
fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", folder)(error)),
        _ => Ok(()),
    }
}
