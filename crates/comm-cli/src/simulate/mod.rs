//! `commctl simulate`: predicts the times of the algorithms of a collective with a link model.

mod bound;
mod json;
mod options;
mod plot;
mod predict;
mod table;

use std::io::{self, Write};
use std::path::PathBuf;

use comm::ring::choose::choose;

pub(crate) use options::Simulate;
use predict::{Prediction, Simulator};

#[derive(Debug, thiserror::Error)]
pub(crate) enum SimulateError {
    #[error("{0}")]
    Invalid(comm::Invalid),
    #[error("cannot choose an algorithm")]
    Choice { source: comm::Error },
    #[error("--root {root}: there are {ranks} ranks, numbered from 0")]
    Root { root: usize, ranks: usize },
    /// A schedule is invalid, which is a bug.
    #[error("cannot simulate {algorithm}")]
    Simulation { algorithm: &'static str, source: comm_sim::cost::SimulationError },
    #[error("cannot draw {}: {reason}", .path.display())]
    Plot { path: PathBuf, reason: String },
    #[error("cannot write the results")]
    Output(#[from] io::Error),
}

impl From<comm::Error> for SimulateError {
    fn from(error: comm::Error) -> Self {
        match error {
            comm::Error::Invalid(invalid) => Self::Invalid(invalid),
            source => Self::Choice { source },
        }
    }
}

impl SimulateError {
    /// Returns 2 for invalid arguments, as clap does, and otherwise 1.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Invalid(_) | Self::Root { .. } => 2,
            Self::Choice { .. } | Self::Simulation { .. } | Self::Plot { .. } | Self::Output(_) => 1,
        }
    }
}

impl Simulate {
    pub(crate) fn execute(&self) -> Result<(), SimulateError> {
        let setup = self.setup()?;
        let chosen = choose(&setup.shape, None, &setup.tuning)?.algorithm.name;
        let simulator = Simulator::new(&setup, self.max_steps);
        let rows = self.algorithms(&setup)?;
        let predictions: Vec<Prediction> =
            rows.iter().map(|row| simulator.predict(row)).collect::<Result<_, _>>()?;
        let mut out = io::stdout().lock();
        if self.json {
            json::write(&mut out, &setup, &predictions, chosen)?;
        } else {
            table::write(&mut out, &setup, &predictions, chosen)?;
        }
        out.flush()?;
        if let Some(path) = &self.svg {
            plot::write(path, &setup, &rows, self.max_steps)?;
        }
        Ok(())
    }
}
