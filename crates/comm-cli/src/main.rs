//! The tool `commctl`.

mod collective;
mod error;
mod perf;
mod run;
mod simulate;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Launches programs that use the comm library, measures collectives and predicts their times.
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
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Subcommands::Run(run) => run.execute(),
        Subcommands::Perf(perf) => perf.execute(),
        Subcommands::Simulate(simulate) => simulate.execute(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints an error and its causes on one line of standard error.
fn report(error: &dyn Error) {
    let mut message = format!("commctl: {error}");
    let mut cause = error.source();
    while let Some(source) = cause {
        message += &format!(": {source}");
        cause = source.source();
    }
    // If standard error is closed, the exit code still reports the error.
    drop(writeln!(std::io::stderr(), "{message}"));
}
