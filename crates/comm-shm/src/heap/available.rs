//! The memory that is available to this process.
//!
//! A segment has all its memory from the beginning. If there is too little, the kernel does not
//! fail to allocate it, but kills a process. Private memory that is never written would not have
//! that effect, so a segment must leave enough to all others.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The names of the files of a control group, and the names in its statistics.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Memory that the kernel can reclaim.
    reclaimable: [&'static str; 2],
}

/// Version 1 and version 2 of control groups.
const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};
const V2: Names =
    Names { limit: "memory.max", usage: "memory.current", reclaimable: ["inactive_file", "active_file"] };

/// Whether a segment of this size leaves at least as much memory to others.
pub(super) fn has_memory_for(len: usize) -> bool {
    available(Path::new("/")).is_none_or(|available| len as u64 <= available / 2)
}

/// Returns the bytes that the machine and the control groups of this process have left, as far as
/// that is known.
fn available(root: &Path) -> Option<u64> {
    let machine = read_to_string(root.join("proc/meminfo")).ok();
    let machine = machine.and_then(|text| value_of(&text, "MemAvailable:")).map(|kib| kib << 10);
    let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let groups = groups.lines().filter_map(|line| in_groups(root, line));
    machine.into_iter().chain(groups).min()
}

/// Returns the bytes that are left in a control group and all those above it, by a line of
/// `/proc/self/cgroup`.
fn in_groups(root: &Path, line: &str) -> Option<u64> {
    let (_, line) = line.split_once(':')?;
    let (controllers, path) = line.split_once(':')?;
    let (mounts, names): (&[&str], _) = if controllers.is_empty() {
        (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], V2)
    } else if controllers.split(',').any(|controller| controller == "memory") {
        (&["sys/fs/cgroup/memory"], V1)
    } else {
        return None;
    };
    let left = |mount: &&str| {
        let mount = root.join(mount);
        let group: PathBuf = mount.join(path.trim_start_matches('/'));
        // In a container, the root may be the group of the container, and the path another one.
        let groups = group.ancestors().take_while(|group| group.starts_with(&mount));
        groups.filter_map(|group| in_group(group, &names)).min()
    };
    mounts.iter().filter_map(left).min()
}

/// Returns the bytes that are left in one control group, if it has a limit.
fn in_group(group: &Path, names: &Names) -> Option<u64> {
    let number = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, usage) = (number(names.limit)?, number(names.usage)?);
    let statistics = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable = names.reclaimable.iter().filter_map(|name| value_of(&statistics, name)).sum();
    Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
}

/// Returns the number after a name at the beginning of a line.
fn value_of(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    /// Creates these files below a folder.
    fn files(list: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in list {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:   1000 kB\n");

    #[test]
    fn the_memory_of_the_machine_is_available() {
        assert_eq!(available(files(&[MEMINFO]).path()), Some(1_024_000));
        assert_eq!(available(files(&[]).path()), None);
        assert!(has_memory_for(1) && !has_memory_for(usize::MAX));
    }

    #[test]
    fn the_tightest_control_group_limits_it() {
        let v2 = [
            MEMINFO,
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/memory.max", "5000\n"),
            ("sys/fs/cgroup/outer/memory.current", "4000\n"),
            ("sys/fs/cgroup/outer/memory.stat", "anon 3000\ninactive_file 300\nactive_file 70\nfile 900\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
            ("sys/fs/cgroup/outer/inner/memory.current", "1000\n"),
        ];
        assert_eq!(available(files(&v2).path()), Some(1370));
    }

    #[test]
    fn the_first_version_of_control_groups_limits_it() {
        let group = |path: &'static str| {
            [MEMINFO, ("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n"), (path, "3000\n")]
        };
        for folder in ["sys/fs/cgroup/memory/job", "sys/fs/cgroup/memory"] {
            let [limit, usage] = ["memory.limit_in_bytes", "memory.usage_in_bytes"].map(|name| {
                let path: &'static str = format!("{folder}/{name}").leak();
                path
            });
            let [info, groups, limit] = group(limit);
            let folder = files(&[info, groups, limit, (usage, "3500\n")]);
            assert_eq!(available(folder.path()), Some(0));
        }
    }
}
