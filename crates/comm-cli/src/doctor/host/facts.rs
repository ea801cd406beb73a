//! Reads the properties of this host that matter for a job.

use std::fs;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use comm::Config;
use comm::tcp::{outward_address, own_addresses};
use comm_cli::__private::ControlGroups;
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::folders::{self, CheckedFolder};
use super::gpu::Gpu;
use crate::host::{available_memory, congestion_control, first_line};

/// The properties of a host. Those that cannot be read are `None`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) host: String,
    /// The addresses to which the name of this host resolves on it.
    pub(super) resolves_to: Vec<IpAddr>,
    pub(super) lookup: Duration,
    /// All addresses of this host but loopback.
    pub(super) addresses: Vec<IpAddr>,
    /// The address that ranks publish for other hosts if no interface is chosen.
    pub(super) outward: Option<IpAddr>,
    pub(super) interfaces: Vec<Interface>,
    /// The cores that this process may use.
    pub(super) cores: usize,
    /// The number of cores that the control groups of this process allow.
    pub(super) quota: Option<f64>,
    /// The share of periods in which a control group was stopped because of its quota.
    pub(super) throttled: Option<f64>,
    /// The average number of running processes in the last minute.
    pub(super) load: Option<f64>,
    pub(super) open_files: Option<u64>,
    pub(super) memory: Option<usize>,
    /// The value of `kernel.yama.ptrace_scope`.
    pub(super) ptrace_scope: Option<u8>,
    pub(super) congestion_control: String,
    /// The largest send buffer of a TCP connection in bytes.
    pub(super) send_buffer_max: Option<usize>,
    pub(super) gpu: Gpu,
    /// The free bytes of `/dev/shm`.
    pub(super) dev_shm: Option<u64>,
    pub(super) folders: Vec<CheckedFolder>,
    /// The reason why the variables of the environment are not accepted.
    pub(super) environment: Option<String>,
}

/// A network interface.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) is_up: bool,
    pub(super) mtu: Option<u32>,
}

impl Facts {
    /// Reads them, and writes to these folders and the folders of the settings.
    pub(super) fn read(folders: &[PathBuf]) -> Self {
        let config = Config::from_env();
        let host = first_line("/proc/sys/kernel/hostname");
        let began = Instant::now();
        let found = (host.as_str(), 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let lookup = began.elapsed();
        let groups = ControlGroups::own();
        Self {
            resolves_to: found.unwrap_or_default().into_iter().map(|address| address.ip()).collect(),
            lookup,
            addresses: own_addresses(None).unwrap_or_default(),
            outward: outward_address(),
            interfaces: interfaces(),
            cores: thread::available_parallelism().map_or(1, usize::from),
            quota: groups.cores(),
            throttled: groups.throttled(),
            load: first_word("/proc/loadavg"),
            open_files: getrlimit(Resource::Nofile).current,
            memory: available_memory(),
            ptrace_scope: first_word("/proc/sys/kernel/yama/ptrace_scope"),
            congestion_control: congestion_control(),
            send_buffer_max: read(Path::new("/proc/sys/net/ipv4/tcp_wmem"))
                .and_then(|text| text.split_whitespace().nth(2)?.parse().ok()),
            gpu: Gpu::find(),
            dev_shm: statvfs("/dev/shm").ok().map(|found| found.f_bavail * found.f_frsize),
            folders: folders::check(folders, config.as_ref().ok()),
            environment: config.err().map(|error| error.to_string()),
            host,
        }
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn first_word<T: std::str::FromStr>(path: &str) -> Option<T> {
    read(Path::new(path))?.split_whitespace().next()?.parse().ok()
}

fn interfaces() -> Vec<Interface> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let interface = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let state = read(&entry.path().join("operstate")).unwrap_or_default();
        let mtu = read(&entry.path().join("mtu")).and_then(|text| text.trim().parse().ok());
        // Virtual interfaces that cannot tell are up.
        Interface { name, is_up: matches!(state.trim(), "up" | "unknown"), mtu }
    };
    let mut found: Vec<Interface> =
        entries.map(interface).filter(|interface| interface.name != "lo").collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_name_cores_and_memory() {
        let facts = Facts::read(&[]);
        assert!(!facts.host.is_empty() && facts.cores > 0 && facts.memory.is_some(), "{facts:?}");
        assert!(facts.open_files.is_none_or(|most| most > 0));
    }
}
