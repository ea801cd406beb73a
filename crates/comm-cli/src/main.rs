//! The tool `commctl`.

mod perf;
mod run;
mod simulate;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use comm_cli::launch::LaunchError;

/// Runs, measures and examines programs that communicate through the comm library.
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
    match Cli::parse().command {
        Subcommands::Run(run) => exit(run.execute(), LaunchError::exit_code),
        Subcommands::Perf(perf) => exit(perf.execute(), |error| error.exit_code()),
        Subcommands::Simulate(simulate) => exit(simulate.execute(), simulate::Failure::exit_code),
    }
}

/// The exit code of an outcome; an error is said.
fn exit<E: Error>(outcome: Result<(), E>, code: impl Fn(&E) -> u8) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(code(&error))
        }
    }
}

/// Prints an error and what caused it on one line of standard error.
fn report(error: &dyn Error) {
    let mut message = format!("commctl: {error}");
    let mut cause = error.source();
    while let Some(source) = cause {
        message += &format!(": {source}");
        cause = source.source();
    }
    // Nowhere is left to say that standard error is closed.
    drop(writeln!(std::io::stderr(), "{message}"));
}
