//! The checkpoints of a training run.

use std::path::Path;
use std::thread::{self, JoinHandle};

use comm_core::Comm;

use crate::checkpoint::Checkpoint;
use crate::exchange::agree;
use crate::folder::Folder;
use crate::state::State;
use crate::{Error, Result, load, save};

/// The relation between the folders of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Placement {
    /// All ranks write to the same folder, on one host or a shared file system.
    #[default]
    Shared,
    /// Every host has its own folder at the same path. Loading copies the files that a host lacks
    /// over the communicator.
    PerHost,
}

/// Options of [`Checkpoints`], equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The number of checkpoints to keep, at least 1. Older ones are removed after each save,
    /// except for the one that was just saved.
    pub keep: usize,
    /// The relation between the folders of the ranks.
    pub placement: Placement,
}

impl Default for Options {
    /// Returns options that keep three checkpoints in a shared folder.
    fn default() -> Self {
        Self { keep: 3, placement: Placement::Shared }
    }
}

/// Setters, as in `Options::default().keep(5)`.
impl Options {
    comm_core::setters!(keep: usize, placement: Placement);
}

/// The checkpoints of a training run in a folder, which no other run uses.
///
/// All methods except [`Checkpoints::wait`] are collectives: every rank calls them in the same
/// order.
///
/// A save that is interrupted at any point, on one rank or on all, leaves earlier checkpoints
/// intact. Its own files are ignored without the manifest, which is written last, and a later save
/// removes them.
#[derive(Debug)]
pub struct Checkpoints {
    comm: Comm,
    folder: Folder,
    options: Options,
    pending: Option<JoinHandle<Result<()>>>,
}

impl Checkpoints {
    /// Opens a folder, which is created if it does not exist, and duplicates the communicator. This
    /// is a collective.
    ///
    /// # Errors
    /// [`Error::Io`] on a rank that cannot use the folder and [`Error::Peer`] on the others;
    /// [`Error::Comm`].
    pub fn open(comm: &Comm, folder: impl AsRef<Path>, options: Options) -> Result<Self> {
        let comm = comm.duplicate()?;
        let folder = Folder::open(folder.as_ref());
        agree(&comm, folder.as_ref().map(drop).map_err(Clone::clone))?;
        Ok(Self { comm, folder: folder?, options, pending: None })
    }

    /// Saves the state of all ranks as the checkpoint of this step. When it returns, the checkpoint
    /// is on disk.
    ///
    /// # Errors
    /// [`Error::Exists`] if there already is a checkpoint of the step whose files are all present
    /// with the right length (any other is replaced); [`Error::Mismatch`] and [`Error::Coverage`],
    /// on every rank, if the states of the ranks are inconsistent; [`Error::Io`] on a rank that
    /// cannot write and [`Error::Peer`] on the others; [`Error::Comm`], after which the checkpoint
    /// is complete or absent. After any other error there is none of this step. If an earlier
    /// [`Checkpoints::save_async`] failed, its error is returned instead and nothing is saved.
    pub fn save(&mut self, step: u64, state: &State<'_>) -> Result<()> {
        self.join()?;
        save::save(&self.comm, &self.folder, self.options, step, state)
    }

    /// Saves the state of all ranks in the background. The buffers are copied before it returns, so
    /// the caller may change them. An earlier save that is still running is completed first.
    ///
    /// # Errors
    /// The error of the earlier save, in which case nothing is saved; [`Error::Io`] if the system
    /// cannot start a thread. Errors of this save are returned by the next call.
    pub fn save_async(&mut self, step: u64, state: &State<'_>) -> Result<()> {
        self.join()?;
        let state = state.clone().into_owned();
        let (comm, folder, options) = (self.comm.clone(), self.folder.clone(), self.options);
        let run = move || save::save(&comm, &folder, options, step, &state);
        let thread = thread::Builder::new().name("comm-checkpoint".into()).spawn(run);
        self.pending = Some(thread.map_err(|error| comm_core::Error::io("start a thread", error))?);
        Ok(())
    }

    /// Waits until the save in the background has completed, if one is running.
    ///
    /// # Errors
    /// As [`Checkpoints::save`].
    pub fn wait(&mut self) -> Result<()> {
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        self.pending.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Err(Error::Panicked)))
    }

    /// Opens the newest complete checkpoint, or returns `None` if there is none. Damaged ones are
    /// skipped with a warning.
    ///
    /// # Errors
    /// As [`Checkpoints::load`].
    pub fn load_latest(&mut self) -> Result<Option<Checkpoint>> {
        self.join()?;
        let newest = load::newest(&self.comm, &self.folder)?;
        newest.map(|step| self.load(step)).transpose()
    }

    /// Opens the checkpoint of a step.
    ///
    /// # Errors
    /// [`Error::NoSuchStep`]; [`Error::Corrupt`] if its manifest is damaged, or a file is missing
    /// or has the wrong length; [`Error::Io`] on a rank that cannot read it and [`Error::Peer`] on
    /// the others; [`Error::Comm`].
    pub fn load(&mut self, step: u64) -> Result<Checkpoint> {
        self.join()?;
        load::load(&self.comm, &self.folder, self.options.placement, step)
    }

    /// Returns the steps of the complete checkpoints in this rank's folder in ascending order.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn steps(&self) -> Result<Vec<u64>> {
        self.folder.steps()
    }
}

impl Drop for Checkpoints {
    /// Waits for a save in the background, and logs its error.
    fn drop(&mut self) {
        if let Err(error) = self.join() {
            tracing::error!(%error, "a checkpoint was not saved");
        }
    }
}
