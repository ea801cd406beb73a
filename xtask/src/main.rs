//! The tasks of this repository, run as `cargo xtask`.

#![forbid(unsafe_code)]

mod commands;
mod compare;
mod docs;
mod error;
mod features;
mod gpu_check;
mod kernels;
mod lightgbm;
mod mpi;
mod nccl;
mod oneccl;
mod package;
mod packages;
mod places;
mod requirements;
mod swarm;
mod tidy;
mod torch;
mod verify;
mod wheel;

use std::io::stdout;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use comm_cli::__private::program::{chain, fail};

/// Tasks of this repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Compare(Box<compare::Compare>),
    /// Check the rules of this repository that the compiler does not check
    Tidy,
    TorchFetch(torch::TorchFetch),
    TorchTest(torch::TorchTest),
    /// Generate docs/algorithms.md and its drawings from the table of algorithms
    Docs {
        /// Write nothing, and fail if a file is outdated
        #[arg(long)]
        check: bool,
    },
    /// Compile every published package without features and with each feature alone
    Features,
    GpuCheck(gpu_check::GpuCheck),
    Kernels(kernels::Kernels),
    LightgbmFetch(lightgbm::LightGbmFetch),
    /// Download implementations of MPI into target/mpi, and print the paths of their launchers
    ///
    /// `cargo xtask compare` measures them. The launcher of MPICH is a value of COMM_TEST_LAUNCHERS
    /// for the tests of comm-world. Needs Python with pip, to download up to 120 MB for x86-64 from
    /// PyPI and check their hashes.
    MpiFetch {
        /// Implementations
        #[arg(value_enum, default_values_t = mpi::MpiPackage::ALL)]
        packages: Vec<mpi::MpiPackage>,
    },
    NcclBindings(nccl::Bindings),
    NcclFetch(nccl::Fetch),
    /// Download oneCCL into target/oneccl, and print the folders of its parts
    ///
    /// `cargo xtask compare` measures it over Intel MPI, which `cargo xtask mpi-fetch` downloads.
    /// Needs Python with pip, to download 80 MB for x86-64 from PyPI and check their hashes.
    OnecclFetch,
    /// Pack the published packages, and run a program that depends on them
    Package,
    Swarm(swarm::Swarm),
    /// Verify every schedule, and check that the verifier rejects mutations of it
    Verify,
}

fn main() -> ExitCode {
    let out = &mut stdout().lock();
    let outcome = match Cli::parse().task {
        Task::Compare(compare) => compare.execute(out),
        Task::Docs { check } => docs::run(check, out),
        Task::Features => features::run(out),
        Task::GpuCheck(check) => check.execute(out),
        Task::Kernels(kernels) => kernels.execute(out),
        Task::LightgbmFetch(fetch) => fetch.execute(out),
        Task::MpiFetch { packages } => mpi::fetch(&packages, out),
        Task::NcclBindings(bindings) => bindings.execute(out),
        Task::NcclFetch(fetch) => fetch.execute(out),
        Task::OnecclFetch => oneccl::fetch(out),
        Task::Package => package::run(out),
        Task::Swarm(swarm) => swarm.execute(out),
        Task::Tidy => tidy::run(),
        Task::TorchFetch(fetch) => fetch.execute(out),
        Task::TorchTest(test) => test.execute(),
        Task::Verify => verify::run(out),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail("xtask", chain(&error), 1),
    }
}
