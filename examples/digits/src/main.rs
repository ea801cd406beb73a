//! Trains a network on handwritten digits, on several processes of this machine.

mod args;
mod console;
mod run;

use std::process::ExitCode;

use clap::Parser;
use comm::Config;
use comm_cli::__private::program;

use args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    if Config::is_launched() {
        program::run_rank("digits", |comm| run::run(comm, &args))
    } else {
        program::launch("digits", |launch| {
            let launch = launch.on_loss(|failure| program::report("digits", failure));
            let launch = if args.elastic { launch.ranks_min(1) } else { launch };
            launch.ranks(args.ranks.get()).run()
        })
    }
}
