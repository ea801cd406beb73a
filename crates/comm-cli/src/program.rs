//! Helpers for programs that start themselves once per rank, and for printing errors.

use std::env;
use std::error::Error;
use std::fmt::Display;
use std::io::{Write, stderr};
use std::iter::successors;
use std::process::ExitCode;

use comm::{Comm, Config};

use crate::launch::{Launch, LaunchError};

/// Returns the messages of an error and its causes on one line.
pub fn chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Prints a line on standard error, prefixed with the name of the program.
pub fn report(program: &str, line: impl Display) {
    // If standard error is closed, the exit code still reports an error.
    drop(writeln!(stderr(), "{program}: {line}"));
}

/// Prints a reason on standard error, and returns the exit code.
pub fn fail(program: &str, reason: impl Display, code: u8) -> ExitCode {
    report(program, reason);
    ExitCode::from(code)
}

/// Calls `run` as one rank that a launcher has started, and prints its error.
pub fn run_rank<E>(program: &str, run: impl FnOnce(&Comm) -> Result<(), E>) -> ExitCode
where
    E: From<comm::Error> + Into<Box<dyn Error>>,
{
    run_rank_of(program, |config| run(&comm::init_with(config)?))
}

/// Calls `run` with the configuration of this rank, and prints its error.
pub fn run_rank_of<E: From<comm::Error> + Into<Box<dyn Error>>>(
    program: &str,
    run: impl FnOnce(&Config) -> Result<(), E>,
) -> ExitCode {
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(error) => return fail(program, chain(&error), 1),
    };
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(program, format_args!("rank {}: {}", config.rank, chain(&*error.into())), 1),
    }
}

/// Calls `run` with a launch of this program with the same arguments, and prints its error.
pub fn launch(program: &str, run: impl FnOnce(Launch) -> Result<(), LaunchError>) -> ExitCode {
    let path = match env::current_exe() {
        Ok(path) => path,
        Err(error) => return fail(program, format_args!("cannot find this program: {error}"), 1),
    };
    match run(Launch::new(path).args(env::args_os().skip(1))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(program, chain(&error), error.exit_code()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot write")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_chain_names_an_error_and_its_cause() {
        assert_eq!(chain(&Outer(io::Error::other("disk full"))), "cannot write: disk full");
        assert_eq!(chain(&io::Error::other("disk full")), "disk full");
    }
}
