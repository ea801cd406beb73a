//! Where is measured, and what.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use serde::{Deserialize, Serialize};

use super::error::{CompareError, Result};

/// What numbers depend on and nobody sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    /// What sockets use unless they ask for another.
    pub(crate) congestion_control: String,
}

/// A machine, a day, and a state of the library.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) machine: Machine,
}

/// Looks around.
pub(crate) fn look(root: &Path) -> Result<Place> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let machine = Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown").to_owned(),
        cores: thread::available_parallelism().map_or(1, usize::from),
        memory_gib: memory_gib(&read("/proc/meminfo")),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
    };
    let commit = commit(root)?;
    let date = said(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    Ok(Place { date, commit, machine })
}

/// The last commit that changed what is measured, and whether there are changes since. Pages and
/// journals do not count: the next comparison would then be one of another library.
pub(crate) fn commit(root: &Path) -> Result<String> {
    let git = |words: &[&str]| {
        said(Command::new("git").args(words).args(["--", "crates", "Cargo.lock"]).current_dir(root))
    };
    let commit = git(&["log", "-1", "--format=%h"])?;
    let is_changed = !git(&["status", "--porcelain"])?.is_empty();
    Ok(if is_changed { commit + "-dirty" } else { commit })
}

/// What stands behind a name and a colon.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        Some(rest.trim_start().strip_prefix(':')?.trim())
    })
}

fn memory_gib(meminfo: &str) -> u64 {
    let kibibytes =
        field(meminfo, "MemTotal").and_then(|value| value.strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.map_or(0, |kibibytes| (kibibytes + (1 << 19)) >> 20)
}

/// The first line that a program prints.
fn said(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
        }
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(CompareError::Failed { program, reason })
        }
        Err(source) => Err(CompareError::Start { program, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_by_name() {
        assert_eq!(field("processor\t: 0\nmodel name\t: AMD EPYC\n", "model name"), Some("AMD EPYC"));
        assert_eq!(memory_gib("MemTotal:       24689212 kB\nMemFree:   1 kB\n"), 24);
        assert_eq!(memory_gib(""), 0);
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let error = said(Command::new("git").arg("--no-such-option")).unwrap_err().to_string();
        assert!(error.contains("git failed: ") && error.contains("no-such-option"), "{error}");
        assert!(said(&mut Command::new("no-such-program")).is_err());
    }
}
