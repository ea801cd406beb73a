//! Trains a network on handwritten digits, on several processes of this machine.

mod args;
mod console;
mod elastic;
mod run;

use std::process::ExitCode;

use clap::Parser;
use comm::Config;
use comm_cli::__private::program;

use args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    if Config::is_launched() {
        program::run_rank_of("digits", |config| run::run(config, &args))
    } else {
        program::launch("digits", |launch| {
            let launch = launch.on_loss(|failure| program::report("digits", failure));
            let ranks = args.ranks.get();
            let launch = if args.elastic {
                launch.ranks_min(1).ranks_max(ranks).max_restarts(usize::MAX)
            } else {
                launch
            };
            launch.ranks(ranks).run()
        })
    }
}
