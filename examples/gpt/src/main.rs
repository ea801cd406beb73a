//! Trains a byte-level GPT on several processes of this machine.

#![forbid(unsafe_code)]

mod args;
mod run;

use std::env;
use std::error::Error as StdError;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use comm::Config;
use comm_cli::launch::Launch;

use args::Args;
use gpt::Result;

/// Settings of glibc's allocator. candle allocates and frees the memory of each intermediate
/// tensor; without these, glibc returns it to the kernel each time, which takes a fifth of the
/// processor time.
const ALLOCATOR: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "1073741824")];

fn main() -> ExitCode {
    let args = Args::parse();
    if !Config::is_launched() {
        return launch(&args);
    }
    match Config::from_env() {
        Ok(config) => match run_rank(&config, &args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("rank {}: {}", config.rank, chain(&error)), 1),
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
    let launch = Launch::new(program)
        .args(env::args_os().skip(1))
        .ranks(args.ranks.get())
        .max_restarts(args.max_restarts)
        .on_restart(|restart| report(&restart.to_string()));
    let is_unset = |(name, _): &(&str, &str)| env::var_os(name).is_none();
    let settings = ALLOCATOR.into_iter().filter(is_unset);
    match settings.fold(launch, |launch, (name, value)| launch.env(name, value)).run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string(), error.exit_code()),
    }
}

/// Returns the texts of an error and its causes.
fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn fail(reason: &str, code: u8) -> ExitCode {
    report(reason);
    ExitCode::from(code)
}

fn report(line: &str) {
    // If standard error is closed, the exit code still reports an error.
    let _ = writeln!(io::stderr(), "gpt: {line}");
}
