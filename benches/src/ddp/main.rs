//! Measures the time that data parallel training adds to a step, and prints JSON lines.
//!
//! The program `xtask/peers/ddp.py` measures PyTorch in the same way. A block is a number of
//! consecutive steps after a barrier, on the slowest rank. A pair is a block with synchronization
//! and one without, in the same processes; which one comes first alternates. The overhead of a pair
//! is the difference of its times per step.

#![forbid(unsafe_code)]

mod measure;
mod models;
mod training;

use std::error::Error;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::process::ExitCode;

use clap::Parser;
use comm::{Comm, Config};
use comm_cli::__private::program;

use models::Model;
use training::Variant;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Measure the time that data parallel training adds to a step
///
/// Without a launcher it starts its own ranks. Each rank computes on one thread.
#[derive(Debug, Parser)]
#[command(name = "ddp", version)]
struct Args {
    /// Processes to start, unless a launcher has started them
    #[arg(short = 'n', long, default_value = "2")]
    ranks: NonZeroUsize,

    /// Pairs of blocks of steps with and without synchronization
    #[arg(long, value_name = "N", default_value = "4")]
    pairs: NonZeroUsize,

    /// Minimum duration of a block in milliseconds
    #[arg(long, value_name = "MS", default_value = "400")]
    block_ms: u32,

    /// Models
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = models::find, default_value = models::NAMES)]
    models: Vec<Model>,

    /// Treatments of gradients before they are sent
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_enum, default_value = "plain")]
    variants: Vec<Variant>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if Config::is_launched() {
        program::run_rank("ddp", |comm| measure_all(comm, &args, &mut io::stdout().lock()))
    } else {
        program::launch("ddp", |launch| launch.random_secret(false).ranks(args.ranks.get()).run())
    }
}

/// Measures every model with every variant.
fn measure_all(comm: &Comm, args: &Args, out: &mut impl Write) -> Result<()> {
    for model in &args.models {
        for variant in &args.variants {
            let row = measure::row(comm, *model, *variant, (args.pairs.get(), args.block_ms))?;
            if comm.rank() == 0 {
                writeln!(out, "{row}")?;
                out.flush()?;
            }
        }
    }
    Ok(())
}
