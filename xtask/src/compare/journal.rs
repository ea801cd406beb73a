//! A file of measurements as JSON lines, which grows as they are made.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::machine::Environment;
use super::record::{Missing, Record, Run, Version};
use crate::error::{Error, Result};

/// The names and versions of libraries that are measured, and the names of missing ones with the
/// reasons.
#[derive(Debug, Clone, Default)]
pub(crate) struct LibraryVersions {
    pub(crate) installed: Vec<(String, String)>,
    pub(crate) missing: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// All records of the file.
    pub(crate) records: Vec<Record>,
}

impl Journal {
    /// Opens or creates a journal; `fresh` discards its records.
    pub(crate) fn open(path: &Path, fresh: bool) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Error::file(folder))?;
        }
        let records = if path.exists() && !fresh { read(path)? } else { Vec::new() };
        // Truncates a line that an interrupted run left incomplete.
        let text = records.iter().map(line).collect::<Result<String>>()?;
        fs::write(path, text).map_err(Error::file(path))?;
        let file = OpenOptions::new().append(true).open(path).map_err(Error::file(path))?;
        Ok(Self { path: path.to_owned(), file, records })
    }

    /// Appends a record to the file.
    pub(crate) fn add(&mut self, record: Record) -> Result<()> {
        let written = self.file.write_all(line(&record)?.as_bytes());
        written.map_err(Error::file(&self.path))?;
        self.records.push(record);
        Ok(())
    }

    /// Returns the number of the run for new measurements: the last one, unless the machine or the
    /// library has changed.
    pub(crate) fn start(&mut self, environment: Environment, libraries: &LibraryVersions) -> Result<u64> {
        let last = self.records.iter().rev().find_map(|record| match record {
            Record::Run(run) => Some(run),
            _ => None,
        });
        let run = match last {
            Some(last) if (&last.machine, &last.commit) == (&environment.machine, &environment.commit) => {
                last.run
            }
            _ => {
                let run = seconds().max(last.map_or(0, |last| last.run + 1));
                let Environment { date, commit, machine } = environment;
                self.add(Record::Run(Run { run, date, commit, machine }))?;
                run
            }
        };
        for (library, version) in &libraries.installed {
            let (library, version) = (library.clone(), version.clone());
            self.add_once(Record::Version(Version { run, library, version }))?;
        }
        for (library, reason) in &libraries.missing {
            let (library, reason) = (library.clone(), reason.clone());
            self.add_once(Record::Missing(Missing { run, library, reason }))?;
        }
        Ok(run)
    }

    fn add_once(&mut self, record: Record) -> Result<()> {
        if self.records.contains(&record) { Ok(()) } else { self.add(record) }
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn line(record: &Record) -> Result<String> {
    let json = |source| Error::Json { what: "a record".into(), source };
    Ok(serde_json::to_string(record).map_err(json)? + "\n")
}

/// Reads all records of a file, except an incomplete last line.
pub(crate) fn read(path: &Path) -> Result<Vec<Record>> {
    let text = fs::read_to_string(path).map_err(Error::file(path))?;
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).enumerate();
    lines
        .map(|(index, line)| {
            let what = || format!("{}:{}", path.display(), index + 1);
            serde_json::from_str(line).map_err(|source| Error::Json { what: what(), source })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::collective::Collective;
    use super::super::machine::Machine;
    use super::super::record::{Case, Time};
    use super::*;

    fn environment(commit: &str) -> Environment {
        let machine = Machine {
            cpu: "a CPU".into(),
            cores: 2,
            memory_gib: 24,
            kernel: "6.1".into(),
            congestion_control: "bbr".into(),
            cache_mib: 0,
        };
        Environment { date: "2026-11-21".into(), commit: commit.into(), machine }
    }

    fn time(run: u64) -> Record {
        let case = Case { collective: Collective::AllReduce, ranks: 2, rotates: false };
        Record::Time(Time { run, round: 1, library: "openmpi".into(), case, bytes: 4, us: 0.47 })
    }

    #[test]
    fn added_records_are_read_and_an_incomplete_line_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inner/page.jsonl");
        let mut journal = Journal::open(&path, false).unwrap();
        journal.add(time(1)).unwrap();
        journal.add(time(2)).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();

        let mut journal = Journal::open(&path, false).unwrap();
        assert_eq!(journal.records, [time(1)]);
        journal.add(time(3)).unwrap();
        assert_eq!(read(&path).unwrap(), [time(1), time(3)]);
        assert_eq!(Journal::open(&path, true).unwrap().records, []);
    }

    #[test]
    fn the_error_of_an_invalid_line_has_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.jsonl");
        fs::write(&path, format!("{}what?\n", line(&time(1)).unwrap())).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.ends_with("page.jsonl:2"), "{error}");
    }

    #[test]
    fn a_run_continues_until_the_library_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.jsonl");
        let found =
            LibraryVersions { installed: Vec::new(), missing: vec![("gloo".into(), "no PyTorch".into())] };
        let run = |commit| Journal::open(&path, false).unwrap().start(environment(commit), &found).unwrap();
        let first = run("abc");
        assert_eq!(run("abc"), first);
        assert_eq!(read(&path).unwrap().len(), 2);
        assert!(run("def") > first);
        assert_eq!(read(&path).unwrap().len(), 4);
    }
}
