//! Trains a byte-level GPT on several processes of this machine.

#![forbid(unsafe_code)]

mod args;
mod run;

use std::env;
use std::process::ExitCode;

use clap::Parser;
use comm::Config;
use comm_cli::__private::program;
use comm_cli::launch::Launch;

use args::Args;

/// Settings of glibc's allocator. candle allocates and frees the memory of each intermediate
/// tensor; without these, glibc returns it to the kernel each time, which takes a fifth of the
/// processor time.
const ALLOCATOR: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "1073741824")];

fn main() -> ExitCode {
    let args = Args::parse();
    if Config::is_launched() {
        program::run_rank("gpt", |comm| run::run(comm, &args))
    } else {
        program::launch("gpt", |launch| with_options(launch, &args).run())
    }
}

/// Sets the ranks, the restarts, and the variables that are unset.
fn with_options(launch: Launch, args: &Args) -> Launch {
    let launch = launch
        .ranks(args.ranks.get())
        .max_restarts(args.max_restarts)
        .on_restart(|restart| program::report("gpt", restart));
    let unset = ALLOCATOR.into_iter().filter(|(name, _)| env::var_os(name).is_none());
    unset.fold(launch, |launch, (name, value)| launch.env(name, value))
}
