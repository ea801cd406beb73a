//! The checkpoints of a run.

use std::path::Path;

use candle_nn::VarMap;
use comm::Comm;
use comm::checkpoint::{Checkpoint, Checkpoints, Error as Fault, Options, State};
use comm_candle::checkpoint;

use crate::Result;

/// The checkpoints of a run in a folder.
///
/// Between outer steps, each rank has parameters and an optimizer of its own, and saves them in a
/// folder of its own before all ranks save what they have in common. So the newest checkpoint of
/// all ranks has those of each.
#[derive(Debug)]
pub struct Store {
    shared: Checkpoints,
    own: Option<Checkpoints>,
}

impl Store {
    /// Opens a folder. `own` is a communicator of this rank alone, if ranks differ. A collective.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(crate) fn open(comm: &Comm, own: Option<&Comm>, folder: &Path) -> Result<Self> {
        let shared = Checkpoints::open(comm, folder, Options::default())?;
        let folder = folder.join(format!("rank-{}", comm.rank()));
        let own = own.map(|own| Checkpoints::open(own, folder, Options::default())).transpose()?;
        Ok(Self { shared, own })
    }

    /// Saves the parameters, the state of the optimizer, and the state that all ranks share.
    pub(crate) fn save<'a>(
        &mut self,
        step: u64,
        parameters: &VarMap,
        mut optimizer: State<'a>,
        share: impl FnOnce(&mut State<'a>) -> Result<()>,
    ) -> Result<()> {
        let Some(own) = &mut self.own else {
            share(&mut optimizer)?;
            return Ok(checkpoint::save(&mut self.shared, step, parameters, optimizer)?);
        };
        match checkpoint::save(own, step, parameters, optimizer) {
            // A run that was killed before all ranks had saved this step has saved the same.
            Ok(()) | Err(comm_candle::Error::Checkpoint(Fault::Exists { .. })) => {}
            Err(error) => return Err(error.into()),
        }
        let mut shared = State::new();
        share(&mut shared)?;
        Ok(self.shared.save(step, &shared)?)
    }

    /// Opens the newest checkpoint. Returns the part that all ranks share and the one with the
    /// parameters and the optimizer, which may be the same.
    pub(crate) fn load_latest(&mut self) -> Result<Option<(Checkpoint, Checkpoint)>> {
        let Some(shared) = self.shared.load_latest()? else { return Ok(None) };
        let own = self.own.as_mut().map(|own| own.load(shared.step())).transpose()?;
        Ok(Some((shared.clone(), own.unwrap_or(shared))))
    }
}
