//! What this host tells: its name, the cores of this process, the memory that is left.

use std::fs;

/// What this process knows of where it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// The cores that it may run on, as in `0-3,8`.
    pub(crate) cores: String,
}

impl Seat {
    /// This process's.
    pub(crate) fn own() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            host: first_line("/proc/sys/kernel/hostname"),
            pid: std::process::id(),
            cores: field(&status, "Cpus_allowed_list:").unwrap_or("unknown").to_owned(),
        }
    }
}

/// The system's congestion control.
pub(crate) fn congestion_control() -> String {
    first_line("/proc/sys/net/ipv4/tcp_congestion_control")
}

/// The memory in bytes that this process and its like may still take: what the system has left, or
/// the control group if that is less. Nothing if neither says.
pub(crate) fn available_memory() -> Option<usize> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let system = kibibytes(&meminfo, "MemAvailable:");
    let number = |file: &str| first_line(&format!("/sys/fs/cgroup/{file}")).parse::<usize>().ok();
    let group = number("memory.max").zip(number("memory.current")).map(|(max, now)| max.saturating_sub(now));
    system.into_iter().chain(group).min()
}

fn kibibytes(text: &str, name: &str) -> Option<usize> {
    field(text, name)?.strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// What stands behind a name at the start of a line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn first_line(path: &str) -> String {
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
    fn this_host_has_cores_and_memory() {
        assert!(Seat::own().cores.starts_with(|first: char| first.is_ascii_digit()));
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }
}
