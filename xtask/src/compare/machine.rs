//! The machine and the commit of a measurement.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use comm_cli::__private::units;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::{commands, places};

/// Properties of a machine that affect times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    /// The default congestion control of sockets.
    pub(crate) congestion_control: String,
    /// The last-level cache in MiB; 0 if it is not known.
    #[serde(default)]
    pub(crate) cache_mib: usize,
}

/// The machine, the date and the commit of a measurement.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) machine: Machine,
}

impl Environment {
    pub(crate) fn current() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let machine = Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown").to_owned(),
            cores: cores(),
            memory_gib: memory_gib(&read("/proc/meminfo")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
            cache_mib: cache_bytes().unwrap_or(0) >> 20,
        };
        let date = first_line(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
        Ok(Self { date, commit: commit(&places::root())?, machine })
    }
}

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the size of the copies of a buffer of all ranks, with which calls do not find their
/// input in the cache.
pub(crate) fn rotated_bytes() -> usize {
    const UNKNOWN: usize = 64 << 20;
    2 * cache_bytes().unwrap_or(UNKNOWN)
}

/// Returns the size of the last-level cache.
fn cache_bytes() -> Option<usize> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = caches.filter_map(|cache| fs::read_to_string(cache.ok()?.path().join("size")).ok());
    sizes.filter_map(|size| units::parse(size.trim()).ok()).max()
}

/// Returns the last commit that changed the library, with `-dirty` for uncommitted changes. Reports
/// do not count, because a comparison changes them.
pub(crate) fn commit(root: &Path) -> Result<String> {
    let git = |words: &[&str]| {
        first_line(Command::new("git").args(words).args(["--", "crates", "Cargo.lock"]).current_dir(root))
    };
    let commit = git(&["log", "-1", "--format=%h"])?;
    let is_changed = !git(&["status", "--porcelain"])?.is_empty();
    Ok(if is_changed { commit + "-dirty" } else { commit })
}

/// Returns the text after a name and a colon.
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

/// Returns the first line of the output of a program.
fn first_line(command: &mut Command) -> Result<String> {
    Ok(commands::output(command)?.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        assert_eq!(field("processor\t: 0\nmodel name\t: AMD EPYC\n", "model name"), Some("AMD EPYC"));
        assert_eq!(memory_gib("MemTotal:       24689212 kB\nMemFree:   1 kB\n"), 24);
        assert_eq!(memory_gib(""), 0);
    }
}
