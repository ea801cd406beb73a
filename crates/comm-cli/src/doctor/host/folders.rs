//! Writes to the folders that ranks use.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use comm::{Config, StoreHost};
use serde::{Deserialize, Serialize};

use super::JobSize;
use super::facts::Facts;
use super::problems::Problem;

/// The bytes that are written and synchronized.
const BYTES: usize = 1 << 20;
/// The time after which a folder is slow. A disk takes some milliseconds.
const SLOW: Duration = Duration::from_secs(1);
/// The time after which a write counts as one that hangs.
const HANGS: Duration = Duration::from_secs(5);

/// A folder to which ranks write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckedFolder {
    pub(super) path: PathBuf,
    /// The time of a write, or the reason why it failed; `None` if it has not ended.
    pub(super) write: Option<Result<Duration, String>>,
}

/// Writes to these folders, and to those that the settings of a rank name.
pub(super) fn check(named: &[PathBuf], config: Option<&Config>) -> Vec<CheckedFolder> {
    let mut paths = named.to_vec();
    if let Some(config) = config {
        paths.extend(config.flight_dir.clone());
        paths.extend(match &config.store {
            StoreHost::Folder(folder) => Some(folder.clone()),
            _ => None,
        });
    }
    paths.into_iter().map(|path| CheckedFolder { write: write_for(&path, HANGS), path }).collect()
}

/// Writes on another thread, which a hanging file system blocks for as long as it hangs.
fn write_for(folder: &Path, limit: Duration) -> Option<Result<Duration, String>> {
    let path = folder.join(format!(".commctl-doctor-{}", std::process::id()));
    let (sender, receiver) = sync_channel(1);
    let write = move || {
        // Nobody waits any longer if this fails.
        drop(sender.send(write(&path)));
    };
    if let Err(error) = thread::Builder::new().name("doctor-write".into()).spawn(write) {
        return Some(Err(error.to_string()));
    }
    match receiver.recv_timeout(limit) {
        Ok(outcome) => Some(outcome.map_err(|error| error.to_string())),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Err("the thread that writes ended".into())),
    }
}

fn write(path: &Path) -> io::Result<Duration> {
    let began = Instant::now();
    let mut file = fs::File::create_new(path)?;
    let written = file.write_all(&vec![0; BYTES]).and_then(|()| file.sync_all());
    let took = began.elapsed();
    fs::remove_file(path)?;
    written.map(|()| took)
}

/// Returns the problem of the worst folder.
pub(super) fn problem(facts: &Facts, _: &JobSize) -> Option<Problem> {
    let problem = |folder: &CheckedFolder| {
        let CheckedFolder { path, write } = folder;
        let subject = format!("{}: writing to {}", facts.host, path.display());
        let error = |text: String, remedy: &str| Some(Problem::error(text, remedy));
        match write {
            None => {
                let text = format!("{subject} has not ended after {} s", HANGS.as_secs());
                error(text, "check the disk, or the server of the file system; see dmesg")
            }
            Some(Err(reason)) => error(
                format!("{subject} fails: {reason}"),
                "create it, or choose a folder that ranks may write to",
            ),
            Some(Ok(took)) => (*took > SLOW).then(|| {
                let text = format!("{subject} took {:.1} s for 1 MiB", took.as_secs_f64());
                Problem::warning(text, "use a faster disk; ranks wait for checkpoints and records")
            }),
        }
    };
    facts.folders.iter().filter_map(problem).min_by_key(|problem| problem.severity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_leaves_no_file_and_one_that_fails_or_hangs_says_so() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write_for(folder.path(), HANGS).unwrap().is_ok());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let reason = write_for(&folder.path().join("none"), HANGS).unwrap().unwrap_err();
        assert!(reason.contains("No such file"), "{reason}");
        assert_eq!(write_for(folder.path(), Duration::ZERO), None);
    }
}
