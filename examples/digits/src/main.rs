//! Trains a network on handwritten digits, on several processes of this machine.

mod args;
mod console;
mod run;

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use comm::Config;
use comm_cli::launch::Launch;

use args::Args;
use digits::error::Result;

fn main() -> ExitCode {
    let args = Args::parse();
    if !Config::is_launched() {
        return launch(&args);
    }
    match Config::from_env() {
        Ok(config) => match run_rank(&config, &args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("rank {}: {error}", config.rank), 1),
        },
        Err(error) => fail(&error.to_string(), 1),
    }
}

/// Runs as one rank of a launcher.
fn run_rank(config: &Config, args: &Args) -> Result<()> {
    let comm = comm::init_with(config)?;
    run::run(&comm, args)
}

/// Starts this program once per rank, with the same arguments.
fn launch(args: &Args) -> ExitCode {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return fail(&format!("cannot find this program: {error}"), 1),
    };
    match Launch::new(program).args(env::args_os().skip(1)).ranks(args.ranks.get()).run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string(), error.exit_code()),
    }
}

fn fail(reason: &str, code: u8) -> ExitCode {
    // If standard error is closed, the exit code still reports the error.
    let _ = writeln!(io::stderr(), "digits: {reason}");
    ExitCode::from(code)
}
