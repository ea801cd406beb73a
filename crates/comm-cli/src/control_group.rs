//! The limits of the control groups of this process (version 2).

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";

/// The folders of the control group of this process and of its ancestors, whose limits all apply.
#[derive(Debug, Clone, Default)]
pub struct ControlGroups {
    folders: Vec<PathBuf>,
}

impl ControlGroups {
    /// Returns the groups of this process; none on a system without version 2.
    pub fn own() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        match groups.lines().find_map(|line| line.strip_prefix("0::/")) {
            Some(path) => Self::below(Path::new(ROOT), path),
            None => Self::default(),
        }
    }

    fn below(root: &Path, path: &str) -> Self {
        let folder = root.join(path);
        let ancestors = folder.ancestors().take_while(|folder| folder.starts_with(root));
        Self { folders: ancestors.map(Path::to_path_buf).collect() }
    }

    /// Returns the number of cores that the strictest group allows.
    pub fn cores(&self) -> Option<f64> {
        self.each("cpu.max", quota).min_by(f64::total_cmp)
    }

    /// Returns the largest share of periods in which a group was stopped because of its quota.
    pub fn throttled(&self) -> Option<f64> {
        self.each("cpu.stat", throttled).max_by(f64::total_cmp)
    }

    /// Returns the number of threads that the strictest group allows in addition.
    pub fn threads_left(&self) -> Option<usize> {
        self.left("pids")
    }

    /// Returns the bytes of memory that the strictest group allows in addition.
    pub fn memory_left(&self) -> Option<usize> {
        self.left("memory")
    }

    fn left(&self, controller: &str) -> Option<usize> {
        let number =
            |folder: &Path, name| read(&folder.join(format!("{controller}.{name}")))?.trim().parse().ok();
        let left = |folder: &PathBuf| {
            let (max, current): (usize, usize) = (number(folder, "max")?, number(folder, "current")?);
            Some(max.saturating_sub(current))
        };
        self.folders.iter().filter_map(left).min()
    }

    fn each<T>(&self, file: &str, parse: fn(&str) -> Option<T>) -> impl Iterator<Item = T> {
        self.folders.iter().filter_map(move |folder| parse(&read(&folder.join(file))?))
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Parses `cpu.max`: the microseconds in each period, or `max`, and the period.
fn quota(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

/// Parses `cpu.stat`.
fn throttled(text: &str) -> Option<f64> {
    let value = |name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    let periods = value("nr_periods ")?;
    (periods > 0.0).then(|| value("nr_throttled ").map(|stopped| stopped / periods)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_and_throttling_are_read() {
        assert_eq!(quota("150000 100000\n"), Some(1.5));
        assert_eq!(quota("max 100000\n"), None);
        assert_eq!(throttled("usage_usec 9\nnr_periods 40\nnr_throttled 10\n"), Some(0.25));
        assert_eq!(throttled("nr_periods 0\nnr_throttled 0\n"), None);
    }

    #[test]
    fn the_strictest_group_counts_wherever_it_is() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("pod/container");
        fs::create_dir_all(&inner).unwrap();
        let write = |folder: &Path, file: &str, text: &str| fs::write(folder.join(file), text).unwrap();
        write(&inner, "cpu.max", "max 100000\n");
        write(&root.path().join("pod"), "cpu.max", "150000 100000\n");
        write(&root.path().join("pod"), "cpu.stat", "nr_periods 40\nnr_throttled 10\n");
        write(&inner, "pids.max", "100\n");
        write(&inner, "pids.current", "10\n");
        write(root.path(), "pids.max", "max\n");
        let groups = ControlGroups::below(root.path(), "pod/container");
        assert_eq!((groups.cores(), groups.throttled()), (Some(1.5), Some(0.25)));
        assert_eq!((groups.threads_left(), groups.memory_left()), (Some(90), None));
    }
}
