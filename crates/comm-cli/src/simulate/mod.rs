//! `commctl simulate`: predicts the times of the algorithms of a collective with a link model.

mod bound;
mod json;
mod options;
mod plot;
mod predict;
mod table;

use std::io::{self, Write};

use comm::ring::choose::choose;

use crate::error::{CliError, Result};
pub(crate) use options::Simulate;
use predict::{Prediction, Simulator};

impl Simulate {
    pub(crate) fn execute(&self) -> Result<()> {
        let setup = self.setup()?;
        let chosen = choose(&setup.shape, None, &setup.tuning)?.algorithm.name;
        let simulator = Simulator::new(&setup, self.max_steps);
        let rows = self.algorithms(&setup)?;
        let predictions: Vec<Prediction> =
            rows.iter().map(|row| simulator.predict(row)).collect::<Result<_>>()?;
        let mut out = io::stdout().lock();
        let write = if self.json { json::write } else { table::write };
        write(&mut out, &setup, &predictions, chosen)
            .and_then(|()| out.flush())
            .map_err(CliError::write("standard output"))?;
        if let Some(path) = &self.svg {
            plot::write(path, &setup, &rows, self.max_steps)?;
        }
        Ok(())
    }
}
