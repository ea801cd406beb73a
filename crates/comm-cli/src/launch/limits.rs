//! Checks the limits of this machine before the first rank is started.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, geteuid, getrlimit};

use super::error::LaunchError;
use crate::control_group::ControlGroups;

/// The number of descriptors that the launcher needs in addition to those per rank.
const DESCRIPTORS_SPARE: usize = 32;

/// Returns an error if a limit allows fewer ranks, whose output needs `pipes` descriptors each.
/// Limits that cannot be read are ignored.
pub(super) fn check(ranks: usize, pipes: usize) -> Result<(), LaunchError> {
    let limits = [descriptors(pipes), user_processes(), machine_processes(), control_group()];
    match limits.into_iter().flatten().min_by_key(|(most, _)| *most) {
        Some((most, limit)) if ranks > most => Err(LaunchError::TooManyRanks { ranks, most, limit }),
        _ => Ok(()),
    }
}

type Limit = Option<(usize, &'static str)>;

/// Returns the limit of open files. A rank needs a pidfd, a connection to the store, and the pipes
/// and files for its output.
fn descriptors(pipes: usize) -> Limit {
    let per_rank = 2 + pipes;
    let allowed = usize::try_from(getrlimit(Resource::Nofile).current?).ok()?;
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let most = allowed.saturating_sub(open + DESCRIPTORS_SPARE) / per_rank;
    Some((most, "the limit of open files (ulimit -n)"))
}

/// Returns the limit of a user's processes. It is an upper bound, which ignores the user's running
/// processes.
fn user_processes() -> Limit {
    // The kernel does not apply this limit to root.
    if geteuid().is_root() {
        return None;
    }
    let most = usize::try_from(getrlimit(Resource::Nproc).current?).ok()?;
    Some((most, "the limit of a user's processes (ulimit -u)"))
}

fn machine_processes() -> Limit {
    let [pids, threads] = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"].map(number);
    let running = running(&fs::read_to_string("/proc/loadavg").ok()?)?;
    Some((pids?.min(threads?).saturating_sub(running), "the kernel (kernel.pid_max, kernel.threads-max)"))
}

/// Parses the number of threads on the machine from `/proc/loadavg`.
fn running(loadavg: &str) -> Option<usize> {
    let (_, all) = loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?;
    all.parse().ok()
}

fn control_group() -> Limit {
    Some((ControlGroups::own().threads_left()?, "the control group (pids.max)"))
}

/// Reads a number from a file; returns `None` for `max`.
fn number(path: impl AsRef<Path>) -> Option<usize> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_threads_are_read() {
        assert_eq!(running("0.20 0.18 0.12 1/80 11206\n"), Some(80));
        assert_eq!(running(""), None);
    }

    #[test]
    fn more_ranks_than_any_machine_allows_are_an_error() {
        assert!(matches!(check(usize::MAX, 0), Err(LaunchError::TooManyRanks { ranks: usize::MAX, .. })));
        assert!(check(1, 4).is_ok());
    }
}
