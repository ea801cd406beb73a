//! The tool `commctl`.

mod collective;
mod doctor;
mod error;
mod host;
mod perf;
mod run;
mod simulate;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use comm_cli::__private::program::{chain, fail};

/// Launches programs that use the comm library, measures collectives, predicts their times,
/// shows running jobs, and analyses failures.
#[derive(Debug, Parser)]
#[command(name = "commctl", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    Run(run::Run),
    Perf(Box<perf::Perf>),
    Simulate(simulate::Simulate),
    Doctor(doctor::Doctor),
    Top(top::Top),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Subcommands::Run(run) => run.execute(),
        Subcommands::Perf(perf) => perf.execute(),
        Subcommands::Simulate(simulate) => simulate.execute(),
        Subcommands::Doctor(doctor) => doctor.execute(),
        Subcommands::Top(top) => top.execute(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail("commctl", chain(&error), error.exit_code()),
    }
}
