//! Trains a candle model on handwritten digits, on several processes of this machine.

#![forbid(unsafe_code)]

mod train;

use std::env;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::process::ExitCode;

use clap::Parser;
use comm::{Comm, Config};
use comm_cli::__private::program;
use comm_cli::launch::Launch;

use train::{Error, Trainer};

/// The environment variable that sets the number of candle's threads.
const THREADS: &str = "RAYON_NUM_THREADS";

/// Recognises handwritten digits with a candle model that several processes train together
///
/// Without a launcher it starts its own ranks. Under a launcher, such as `commctl run`, it is one
/// of the launcher's ranks. Exits with 1 if the replicas differ in any bit at the end.
#[derive(Debug, Parser)]
#[command(name = "candle-digits", version)]
struct Args {
    /// Processes to start, unless a launcher has started them
    #[arg(short = 'n', long, default_value = "4")]
    ranks: NonZeroUsize,

    /// Passes over the training images
    #[arg(long, default_value = "15")]
    epochs: NonZeroUsize,

    /// Images per rank and step
    #[arg(long, default_value = "16")]
    batch_size: NonZeroUsize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if Config::is_launched() {
        program::run_rank("candle-digits", |comm| run(comm, &args))
    } else {
        program::launch("candle-digits", |launch| with_options(launch, &args).run())
    }
}

/// Trains, and prints the progress on rank 0.
fn run(comm: &Comm, args: &Args) -> Result<(), Error> {
    let say = |line: String| {
        if comm.rank() == 0 { writeln!(io::stdout(), "{line}").map_err(Error::Print) } else { Ok(()) }
    };
    let mut trainer = Trainer::new(comm, args.batch_size.get())?;
    say("epoch     loss   held-out".into())?;
    for epoch in 1..=args.epochs.get() {
        let loss = trainer.epoch(epoch)?;
        for name in trainer.untrained() {
            say(format!("warning: {name} gets no gradient on any rank"))?;
        }
        say(format!("{epoch:5} {loss:8.4} {:10.4}", trainer.accuracy()?))?;
    }
    say(format!("held-out accuracy {:.4}", trainer.accuracy()?))?;
    trainer.check_replicas()?;
    say("replicas bit-identical: yes".into())
}

/// Sets the number of ranks, and one candle thread per rank unless the caller has set a number.
fn with_options(launch: Launch, args: &Args) -> Launch {
    let launch = launch.ranks(args.ranks.get());
    if env::var_os(THREADS).is_none() { launch.env(THREADS, "1") } else { launch }
}
