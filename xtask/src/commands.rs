//! Runs other programs.

use std::process::{Command, Output, Stdio};

use crate::error::{Error, Result};

/// Runs a program that prints its own errors.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    output(command.stdout(Stdio::inherit()).stderr(Stdio::inherit())).map(drop)
}

/// Runs a program and returns its standard output. If it fails, the error contains its standard
/// error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(Output { status, stdout, .. }) if status.success() => {
            Ok(String::from_utf8_lossy(&stdout).into_owned())
        }
        Ok(Output { status, stderr, .. }) => {
            let reason = format!("{status}: {}", String::from_utf8_lossy(&stderr).trim());
            Err(Error::Failed { program, reason: reason.trim_end_matches(": ").to_owned() })
        }
        Err(source) => Err(Error::Start { program, source }),
    }
}

/// Returns a command of the cargo that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_failed_program_has_its_name_and_reason() {
        assert!(run(&mut Command::new("true")).is_ok());
        let failed = run(&mut Command::new("false")).unwrap_err().to_string();
        assert_eq!(failed, "false failed: exit status: 1");
        let failed = output(Command::new("git").arg("--no-such-option")).unwrap_err().to_string();
        assert!(failed.starts_with("git failed: ") && failed.contains("no-such-option"), "{failed}");
        assert!(matches!(run(&mut Command::new("no-such-program")), Err(Error::Start { .. })));
    }
}
