//! A struct that rank 0 sends to all ranks, and a struct of each rank that rank 0 gathers.
//!
//! Objects are types with the traits of serde, of any size, also different ones on each rank.
//!
//! ```sh
//! commctl run -n 4 -- target/debug/examples/object_broadcast
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use comm::{ObjectCollectives, ObjectError};
use serde::{Deserialize, Serialize};

/// The settings of a run, which only rank 0 reads.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Settings {
    name: String,
    rates: Vec<f64>,
    seed: Option<u64>,
}

/// The work that a rank has done.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    rank: usize,
    settings: Settings,
    /// One entry per step; each rank makes another number of them.
    losses: Vec<f64>,
}

/// Stands for reading a file.
fn read_settings() -> Settings {
    Settings { name: "first".into(), rates: vec![0.1, 0.01], seed: Some(7) }
}

/// Stands for the work of a rank.
fn work(rank: usize, settings: Settings) -> Report {
    let losses = (0..=rank).map(|step| settings.rates[0] / (step + 1) as f64).collect();
    Report { rank, settings, losses }
}

pub(crate) fn main() -> Result<(), ObjectError> {
    let comm = comm::init()?;

    // The other ranks pass `None`, and get a copy.
    let own = (comm.rank() == 0).then(read_settings);
    let settings = comm.broadcast_object(0, own.as_ref())?;
    assert_eq!(settings, read_settings());

    // Rank 0 gets a list in the order of ranks, the others get `None`.
    let report = work(comm.rank(), settings);
    let reports = comm.gather_object(0, &report)?;
    assert_eq!(reports.is_some(), comm.rank() == 0);
    if let Some(reports) = reports {
        let expected: Vec<Report> = (0..comm.size()).map(|rank| work(rank, read_settings())).collect();
        assert_eq!(reports, expected);
        let losses: usize = reports.iter().map(|report| report.losses.len()).sum();
        println!("{} ranks got the settings and returned {losses} losses", reports.len());
    }
    Ok(comm.finalize()?)
}
