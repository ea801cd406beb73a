//! The error type of all tasks.

use std::io;
use std::path::{Path, PathBuf};

use comm_cli::__private::plot::DrawError;
use comm_sim::mutate::MutationError;
use comm_sim::swarm::FailedRun;
use comm_sim::verify::Fault;

/// The error of a task.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot start {program}")]
    Start { program: String, source: io::Error },
    #[error("{program} failed: {reason}")]
    Failed { program: String, reason: String },
    #[error("cannot access {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot list the files of the repository")]
    Walk(#[from] walkdir::Error),
    #[error("cannot parse {what}")]
    Json { what: String, source: serde_json::Error },
    #[error("cannot write to the output")]
    Output(#[from] io::Error),
    #[error("{0}")]
    Usage(String),
    #[error("the journal has no measurements")]
    NoMeasurements,
    #[error(transparent)]
    Draw(#[from] DrawError),
    #[error("cannot write a drawing")]
    Drawing(#[from] std::fmt::Error),
    #[error("{what}: the schedule deadlocks after {messages} messages")]
    Deadlock { what: String, messages: usize },
    #[error(transparent)]
    Selection(#[from] comm_core::Error),
    #[error("{count} generated files are outdated; run `cargo xtask {task}`:\n{differences}")]
    Outdated { count: usize, task: &'static str, differences: String },
    #[error("{row}: {fault}")]
    Refuted { row: String, fault: Fault },
    #[error("{row}: {unfit}")]
    Unfit { row: String, unfit: MutationError },
    #[error("the verifier accepted {} wrong mutants:\n{}", .0.len(), .0.join("\n"))]
    Survivors(Vec<String>),
    #[error("seed {seed}: {failure}")]
    Swarm { seed: u64, failure: Box<FailedRun> },
    #[error("the package {package} does not contain the repository's {file}")]
    Licence { package: String, file: &'static str },
    #[error("the package {package} has {bytes} bytes, more than {max}: check `cargo package --list`")]
    PackageSize { package: String, bytes: u64, max: u64 },
    #[error("{0} violations of the rules in xtask/src/tidy")]
    Violations(usize),
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns a function for `map_err` that adds a path to an error.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}
