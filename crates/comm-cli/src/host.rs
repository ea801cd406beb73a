//! Reads properties of this host and process from /proc and /sys.

use std::fs;

use comm_cli::__private::ControlGroups;
use serde::{Deserialize, Serialize};

/// The host, process id and cores of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RankInfo {
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// The allowed cores, such as `0-3,8`.
    pub(crate) cores: String,
}

impl RankInfo {
    pub(crate) fn own() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            host: first_line("/proc/sys/kernel/hostname"),
            pid: std::process::id(),
            cores: field(&status, "Cpus_allowed_list:").unwrap_or("unknown").to_owned(),
        }
    }
}

pub(crate) fn congestion_control() -> String {
    first_line("/proc/sys/net/ipv4/tcp_congestion_control")
}

/// Returns the available memory of the system or the control groups in bytes, whichever is less.
pub(crate) fn available_memory() -> Option<usize> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let system = kibibytes(&meminfo, "MemAvailable:");
    system.into_iter().chain(ControlGroups::own().memory_left()).min()
}

fn kibibytes(text: &str, name: &str) -> Option<usize> {
    field(text, name)?.strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// Returns the rest of the line that starts with `name`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

pub(crate) fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text = "MemFree:  1 kB\nMemAvailable:   2048 kB\nCpus_allowed_list:\t0-3,8\n";
        assert_eq!(kibibytes(text, "MemAvailable:"), Some(2 << 20));
        assert_eq!(kibibytes(text, "SwapFree:"), None);
        assert_eq!(field(text, "Cpus_allowed_list:"), Some("0-3,8"));
    }

    #[test]
    fn cores_and_memory_of_this_host_are_found() {
        assert!(RankInfo::own().cores.starts_with(|first: char| first.is_ascii_digit()));
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }
}
