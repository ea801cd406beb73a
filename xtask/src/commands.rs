//! Programs that chores start, and that say themselves what they do not like.

use std::io;
use std::process::{Command, ExitStatus};

/// Why a program did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The program could not be started.
    #[error("cannot start {program}")]
    Start { program: String, source: io::Error },
    /// The program failed, and has said why.
    #[error("{program} failed: {status}")]
    Failed { program: String, status: ExitStatus },
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command) -> Result<(), CommandError> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(CommandError::Failed { program, status }),
        Err(source) => Err(CommandError::Start { program, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_named() {
        assert!(run(&mut Command::new("true")).is_ok());
        let failed = run(&mut Command::new("false")).unwrap_err().to_string();
        assert!(failed.starts_with("false failed: "), "{failed}");
        assert!(matches!(run(&mut Command::new("no-such-program")), Err(CommandError::Start { .. })));
    }
}
