//! Reads the files of a folder.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use comm::flight::FlightDump;

use crate::error::{CliError, Result};

/// The largest file that is read. A record of the most calls that a rank can keep is smaller.
const BYTES_MAX: u64 = 1 << 30;

/// The content of a folder.
#[derive(Debug, Default)]
pub(super) struct Folder {
    /// The records of the last job.
    pub(super) records: Vec<FlightDump>,
    /// Files that are not used, each with the reason, by name.
    pub(super) skipped: Vec<(String, String)>,
}

impl Folder {
    /// Reads all files whose names end with `.json`, in the order of their names. Files that are
    /// malformed or belong to an earlier job are skipped.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let unreadable = |source| CliError::Read { path: path.to_owned(), source };
        let entries = fs::read_dir(path).map_err(unreadable)?;
        let mut paths = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(unreadable)?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        let mut folder = Self::default();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match read_file(&path) {
                Ok(record) => folder.add(name, record),
                Err(reason) => folder.skipped.push((name, reason)),
            }
        }
        folder.keep_last_job();
        if folder.records.is_empty() {
            return Err(CliError::NoRecord { path: path.to_owned(), skipped: folder.skipped });
        }
        Ok(folder)
    }

    /// Adds a record, unless another file has a later one of the same rank.
    fn add(&mut self, name: String, record: FlightDump) {
        let key = |record: &FlightDump| (record.job, record.group, record.rank);
        match self.records.iter_mut().find(|other| key(other) == key(&record)) {
            None => self.records.push(record),
            Some(other) => {
                if other.written_ns < record.written_ns {
                    *other = record;
                }
                self.skipped.push((name, "another file has a record of the same rank and group".into()));
            }
        }
    }

    fn keep_last_job(&mut self) {
        let Some(last) = self.records.iter().max_by_key(|record| record.written_ns) else { return };
        let job = last.job;
        let (last, earlier): (Vec<_>, Vec<_>) = self.records.drain(..).partition(|record| record.job == job);
        self.records = last;
        let reason = |record: &FlightDump| format!("it belongs to job {:x}, and not to {job:x}", record.job);
        self.skipped.extend(earlier.iter().map(|record| (record.file_name(), reason(record))));
    }
}

/// Reads a file, or returns the reason why it cannot be used.
fn read_file(path: &Path) -> Result<FlightDump, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("it has more than {BYTES_MAX} bytes"));
    }
    FlightDump::parse(&bytes).map_err(|error| error.to_string())
}
