//! Files with the output of ranks.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::error::LaunchError;

/// The number of lines that are shown after a failure, and the bytes that are searched for them.
const LAST_LINES: usize = 20;
const LAST_BYTES: u64 = 16 * 1024;

/// The files of one rank in one start: `DIR/START/rank-R/stdout.log` and `stderr.log`.
#[derive(Debug)]
pub(super) struct RankLogs {
    folder: PathBuf,
}

impl RankLogs {
    pub(super) fn new(folder: &Path, start: usize, rank: usize) -> Self {
        Self { folder: folder.join(start.to_string()).join(format!("rank-{rank}")) }
    }

    /// Opens the files for standard output and error. They are emptied, unless the process
    /// `replaces` one whose output they have.
    pub(super) fn open(&self, replaces: bool) -> Result<[File; 2], LaunchError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| LaunchError::Log { path, source }
        };
        fs::create_dir_all(&self.folder).map_err(failed(&self.folder))?;
        let open = |path: PathBuf| -> Result<File, LaunchError> {
            let mut options = OpenOptions::new();
            // Append mode: children of a rank may write to the same file.
            let file = options.create(true).append(true).open(&path).map_err(failed(&path))?;
            if !replaces {
                file.set_len(0).map_err(failed(&path))?;
            }
            Ok(file)
        };
        Ok([open(self.folder.join("stdout.log"))?, open(self.stderr())?])
    }

    fn stderr(&self) -> PathBuf {
        self.folder.join("stderr.log")
    }

    /// Returns the last lines of standard error, or none if they cannot be read.
    pub(super) fn last_lines(&self) -> Vec<String> {
        last_lines(&self.stderr()).unwrap_or_default()
    }
}

fn last_lines(path: &Path) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(LAST_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut last = VecDeque::with_capacity(LAST_LINES + 1);
    // The first line may have begun before.
    for line in text.lines().skip(usize::from(start > 0)) {
        last.push_back(line.to_owned());
        if last.len() > LAST_LINES {
            last.pop_front();
        }
    }
    Ok(last.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_a_long_file_are_whole() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let logs = RankLogs::new(folder.path(), 1, 3);
        let [_, _] = logs.open(false).expect("files");
        assert_eq!(logs.last_lines(), [""; 0]);
        let path = folder.path().join("1/rank-3/stderr.log");
        fs::write(&path, "one\ntwo").expect("a file");
        assert_eq!(logs.last_lines(), ["one", "two"]);
        let lines: Vec<String> = (0..100).map(|at| format!("{at}{}", "x".repeat(2000))).collect();
        fs::write(&path, lines.join("\n")).expect("a file");
        let last = logs.last_lines();
        assert_eq!(last, lines[100 - last.len()..]);
        assert_eq!(last.len(), 8);
        fs::write(&path, (0..100).map(|at| format!("{at}\n")).collect::<String>()).expect("a file");
        assert_eq!(logs.last_lines().len(), LAST_LINES);
        logs.open(true).expect("files");
        assert_eq!(logs.last_lines().len(), LAST_LINES);
        logs.open(false).expect("files");
        assert_eq!(logs.last_lines(), [""; 0]);
    }
}
