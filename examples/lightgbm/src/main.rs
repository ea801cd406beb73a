//! Trains LightGBM on several processes of this machine, over comm and over LightGBM's own sockets,
//! and compares the models and the times.

mod api;
mod data;
mod train;

use std::fmt::Display;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use comm::{Comm, Config};
use comm_cli::__private::program;

use train::{Error, Trained, Trainer};

/// The largest difference of a predicted probability between training over comm and over
/// LightGBM's sockets, which add the same floats in different orders.
const TOLERANCE: f64 = 1e-6;

/// Trains LightGBM on rows that are divided among several processes
///
/// Without a launcher it starts its own ranks. Under a launcher, such as `commctl run`, it is one
/// of the launcher's ranks. Exits with 1 if the trees of the ranks differ.
#[derive(Debug, Parser)]
#[command(name = "lightgbm", version)]
struct Args {
    /// Processes to start, unless a launcher has started them
    #[arg(short = 'n', long, default_value = "2")]
    ranks: NonZeroUsize,

    /// The library, which is in the Python package lightgbm
    #[arg(long, default_value = "lib_lightgbm.so", value_name = "FILE")]
    library: PathBuf,

    /// Training rows of all ranks
    #[arg(long, default_value = "100000")]
    rows: NonZeroUsize,

    /// Features of a row
    #[arg(long, default_value = "28")]
    features: NonZeroUsize,

    /// Trees of a model
    #[arg(long, default_value = "50")]
    trees: NonZeroUsize,

    /// Leaves of a tree
    #[arg(long, default_value = "63")]
    leaves: NonZeroUsize,

    /// Threads of LightGBM in each process
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,

    /// The part of LightGBM that divides the work
    #[arg(long, value_enum, default_value = "data")]
    learner: Learner,

    /// Also trains over LightGBM's sockets on this host, this many times in turns, and compares
    #[arg(long, default_value = "0")]
    rounds: usize,
}

/// A distributed tree learner. (LightGBM has another one, `feature`, only in its own program.)
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Learner {
    Data,
    Voting,
}

impl Learner {
    fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Voting => "voting",
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if Config::is_launched() {
        program::run_rank("lightgbm", |comm| run(comm, &args))
    } else {
        program::launch("lightgbm", |launch| launch.ranks(args.ranks.get()).run())
    }
}

/// Trains, and prints the results on rank 0.
fn run(comm: &Comm, args: &Args) -> Result<(), Error> {
    let say = |line: &dyn Display| {
        if comm.rank() == 0 { writeln!(io::stdout(), "{line}").map_err(Error::Print) } else { Ok(()) }
    };
    let trainer = Trainer::new(comm, args)?;
    let trained = trainer.over_comm(|trees| {
        let is_due = trees == 1 || trees.is_multiple_of(10);
        if is_due { say(&format_args!("{trees} of {} trees", args.trees)) } else { Ok(()) }
    })?;
    train::check_replicas(comm, &trained.trees)?;
    say(&format_args!("held-out accuracy {:.4}", trainer.accuracy(&trained)))?;
    say(&format_args!("trees equal on {} ranks: yes", comm.size()))?;
    if args.rounds > 0 && comm.size() > 1 { compare(&trainer, &trained, args.rounds, &say) } else { Ok(()) }
}

/// Trains over LightGBM's sockets and over comm in turns, and prints the times.
fn compare(
    trainer: &Trainer<'_>,
    trained: &Trained,
    rounds: usize,
    say: &impl Fn(&dyn Display) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut over_comm, mut over_sockets) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let sockets = trainer.over_sockets()?;
        let again = trainer.over_comm(|_| Ok(()))?;
        over_sockets.push(sockets.seconds);
        over_comm.push(again.seconds);
        if again.trees != trained.trees {
            return Err(Error::NotRepeated);
        }
        let difference = train::difference(trained, &sockets);
        if over_comm.len() == 1 {
            let equal = if sockets.trees == trained.trees { "yes" } else { "no" };
            say(&format_args!("trees equal to those over LightGBM's sockets: {equal}"))?;
            say(&format_args!("largest difference of a prediction: {difference:.1e}"))?;
        }
        if difference > TOLERANCE {
            return Err(Error::PredictionsDiffer(difference));
        }
    }
    let ratios = over_comm.iter().zip(&over_sockets).map(|(ours, theirs)| ours / theirs).collect();
    let (over_comm, over_sockets) = (median(over_comm), median(over_sockets));
    say(&format_args!(
        "seconds over comm {over_comm:.3}, over sockets {over_sockets:.3}, ratio {:.2}",
        median(ratios)
    ))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
