//! Measurements in a file, one per line, written as soon as they are made.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::{CompareError, Result};
use super::machine::Place;
use super::record::{Missing, Record, Run, Subject};
use super::subject::Found;

/// A file of records that grows.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// All that it holds.
    pub(crate) records: Vec<Record>,
}

impl Journal {
    /// Goes on with a file, or starts one.
    pub(crate) fn open(path: &Path, fresh: bool) -> Result<Self> {
        let failed = |source| CompareError::File { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let records = if path.exists() && !fresh { read(path)? } else { Vec::new() };
        // A line that was being written when the last run was stopped is cut off.
        let text = records.iter().map(line).collect::<Result<String>>()?;
        fs::write(path, text).map_err(failed)?;
        let file = OpenOptions::new().append(true).open(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, records })
    }

    /// Adds a record, so that it is in the file when this returns.
    pub(crate) fn add(&mut self, record: Record) -> Result<()> {
        let written = self.file.write_all(line(&record)?.as_bytes());
        written.map_err(|source| CompareError::File { path: self.path.clone(), source })?;
        self.records.push(record);
        Ok(())
    }

    /// The number of the run that measurements belong to from now on: the last one, if neither
    /// machine nor library has changed since.
    pub(crate) fn start(&mut self, place: Place, found: &Found) -> Result<u64> {
        let last = self.records.iter().rev().find_map(|record| match record {
            Record::Run(run) => Some(run),
            _ => None,
        });
        let run = match last {
            Some(last) if last.machine == place.machine && last.commit == place.commit => last.run,
            _ => {
                let run = seconds().max(last.map_or(0, |last| last.run + 1));
                let Place { date, commit, machine } = place;
                self.add(Record::Run(Run { run, date, commit, machine }))?;
                run
            }
        };
        for (subject, version) in &found.here {
            let (subject, version) = (subject.name(), version.clone());
            self.add_once(Record::Subject(Subject { run, subject, version }))?;
        }
        for (subject, reason) in &found.missing {
            let (subject, reason) = (subject.clone(), reason.clone());
            self.add_once(Record::Missing(Missing { run, subject, reason }))?;
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
    Ok(serde_json::to_string(record).map_err(CompareError::Record)? + "\n")
}

/// All records of a file. A last line without an end is not one yet.
pub(crate) fn read(path: &Path) -> Result<Vec<Record>> {
    let failed = |source: io::Error| CompareError::File { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(failed)?;
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).enumerate();
    lines
        .map(|(index, line)| {
            let failed = |source| CompareError::Journal { path: path.to_owned(), line: index + 1, source };
            serde_json::from_str(line).map_err(failed)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::collective::Collective;
    use super::super::machine::Machine;
    use super::super::record::{Case, Time};
    use super::*;

    fn place(commit: &str) -> Place {
        let machine = Machine {
            cpu: "a CPU".into(),
            cores: 2,
            memory_gib: 24,
            kernel: "6.1".into(),
            congestion_control: "bbr".into(),
        };
        Place { date: "2026-11-21".into(), commit: commit.into(), machine }
    }

    fn time(run: u64) -> Record {
        let case = Case { collective: Collective::AllReduce, ranks: 2 };
        Record::Time(Time { run, round: 1, subject: "openmpi".into(), case, bytes: 4, us: 0.47 })
    }

    #[test]
    fn what_is_added_is_read_again_and_a_torn_line_is_cut_off() {
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
    fn a_line_that_is_no_record_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.jsonl");
        fs::write(&path, format!("{}what?\n", line(&time(1)).unwrap())).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.ends_with("page.jsonl:2"), "{error}");
    }

    #[test]
    fn a_run_goes_on_until_the_library_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.jsonl");
        let found = Found { here: Vec::new(), missing: vec![("gloo".into(), "no PyTorch".into())] };
        let run = |commit| Journal::open(&path, false).unwrap().start(place(commit), &found).unwrap();
        let first = run("abc");
        assert_eq!(run("abc"), first);
        assert_eq!(read(&path).unwrap().len(), 2);
        assert!(run("def") > first);
        assert_eq!(read(&path).unwrap().len(), 4);
    }
}
