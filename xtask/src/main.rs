//! Repository chores, run as `cargo xtask`.

#![forbid(unsafe_code)]

mod commands;
mod compare;
mod docs;
mod features;
mod gpu_check;
mod nccl;
mod package;
mod packages;
mod places;
mod tidy;
mod verify;

use std::error::Error;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Repository chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Compare(Box<compare::Compare>),
    /// Check the rules of this repository that no compiler checks
    Tidy,
    /// Write docs/algorithms.md and its drawings from the table of algorithms
    Docs {
        /// Write nothing, and fail if something is not up to date
        #[arg(long)]
        check: bool,
    },
    /// Compile every published package without features, and with each of them alone
    Features,
    GpuCheck(gpu_check::GpuCheck),
    NcclBindings(nccl::Bindings),
    NcclFetch(nccl::Fetch),
    /// Pack what is published, and run a program that depends on the packages
    Package,
    /// Prove every schedule, and break each on purpose to see whether the proof notices
    Verify,
}

fn main() -> ExitCode {
    let outcome: Result<(), Box<dyn Error>> = match Cli::parse().task {
        Task::Compare(compare) => compare.execute(&mut stdout().lock()).map_err(Into::into),
        Task::Docs { check } => docs::run(check, &mut stdout().lock()).map_err(Into::into),
        Task::Features => features::run(&mut stdout().lock()).map_err(Into::into),
        Task::GpuCheck(check) => check.execute(&mut stdout().lock()).map_err(Into::into),
        Task::NcclBindings(bindings) => bindings.execute(&mut stdout().lock()).map_err(Into::into),
        Task::NcclFetch(fetch) => fetch.execute(&mut stdout().lock()).map_err(Into::into),
        Task::Package => package::run(&mut stdout().lock()).map_err(Into::into),
        Task::Tidy => tidy::run().map_err(Into::into),
        Task::Verify => verify::run(&mut stdout().lock()).map_err(Into::into),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nowhere is left to say that standard error is closed.
            drop(writeln!(stderr(), "xtask: {}", chain(&*error)));
            ExitCode::FAILURE
        }
    }
}

/// An error and the causes that its text leaves out, on one line.
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
