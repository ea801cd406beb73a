//! Measures this library, a copy on the device, and PyTorch in turn.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::set_environment;
use super::session::Session;
use super::{RunError, Runner, failed};
use crate::record::{Record, Speed, Subject};
use crate::speed::{NAME, Request};
use crate::{Machine, Placement};

/// The script for PyTorch, with the same protocol.
const SCRIPT: &str = include_str!("../../../../xtask/peers/nccl.py");

/// The collectives that are measured with one rank, and with several ranks. With one rank, all of
/// them are out of place, because a call in place would do nothing.
const ALONE: [&str; 2] = ["all_gather", "reduce_scatter"];
const TOGETHER: [&str; 4] = ["all_reduce", "all_gather", "reduce_scatter", "broadcast"];
/// The number of bytes that a measurement moves, which determines its number of calls.
const MOVED: usize = 4 << 30;
const CALLS_MAX: usize = 100;

/// The sizes and rounds of a measurement.
#[derive(Debug, Clone)]
pub struct Measure {
    /// The bytes of the larger buffer.
    pub sizes: Vec<usize>,
    /// The number of rounds.
    pub rounds: usize,
    /// The Python interpreter that has PyTorch.
    pub python: PathBuf,
}

impl Measure {
    /// Returns the default sizes that fit into the memory of a device.
    #[must_use]
    pub fn on(machine: &Machine, python: PathBuf) -> Self {
        let most = (machine.memory_mib << 20) / 16;
        let sizes = [64 << 10, 1 << 20, 16 << 20, 256 << 20].into_iter().filter(|size| *size <= most);
        Self { sizes: sizes.collect(), rounds: 7, python }
    }
}

/// An implementation and its session, which ends when it fails.
struct Measured {
    subject: Subject,
    session: Option<Session>,
}

impl Runner<'_> {
    /// Measures one rank, and several if possible, and calls `record` with each time.
    ///
    /// # Errors
    /// If a process of this library cannot be started, or `record` fails. Measurements that cannot
    /// be made are recorded as such.
    pub fn measure(
        &self,
        what: &Measure,
        machine: &Machine,
        several: &Result<Placement, String>,
        record: &mut dyn FnMut(Record) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let alone = Placement { devices: vec![self.device], environment: Vec::new() };
        self.measure_group(what, machine, (&alone, &ALONE), record)?;
        match several {
            Ok(several) => self.measure_group(what, machine, (several, &TOGETHER), record),
            Err(why) => record(Record::NotMeasured(format!("collectives of several ranks: {why}"))),
        }
    }

    fn measure_group(
        &self,
        what: &Measure,
        machine: &Machine,
        (group, names): (&Placement, &[&str]),
        record: &mut dyn FnMut(Record) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let folder = tempfile::tempdir().map_err(failed("create a folder"))?;
        let ranks = group.devices.len();
        let ours = match Session::start(self.ours(group, folder.path())?, 2 * self.call_timeout) {
            Ok((session, _)) => session,
            Err(why) => return record(not_measured(ranks, "this library", &why)),
        };
        // One rank makes the copies while all others are idle.
        let alone = Placement { devices: group.devices[..1].to_vec(), environment: Vec::new() };
        let copy_folder = tempfile::tempdir().map_err(failed("create a folder"))?;
        let copy = Session::start(self.ours(&alone, copy_folder.path())?, 2 * self.call_timeout);
        let torch = self.torch(what, machine, group, folder.path())?;
        let mut subjects = vec![Measured { subject: Subject::Ours, session: Some(ours) }];
        for (subject, name, session) in
            [(Subject::Copy, "a copy", copy.map(|(session, _)| session)), (Subject::Torch, "PyTorch", torch)]
        {
            match session {
                Ok(session) => subjects.push(Measured { subject, session: Some(session) }),
                Err(why) => record(not_measured(ranks, name, &why))?,
            }
        }
        for round in 0..what.rounds {
            for (name, bytes) in
                names.iter().flat_map(|name| what.sizes.iter().map(move |size| (*name, *size)))
            {
                // The order rotates, so that no implementation always goes first.
                subjects.rotate_left(1);
                for measured in &mut subjects {
                    measured.measure((name, ranks), bytes, round, record)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the commands that start the processes of this library.
    fn ours(&self, group: &Placement, folder: &Path) -> Result<Vec<Command>, RunError> {
        let start = |spec: &crate::CaseSpec| {
            let mut command = (self.start)()?;
            set_environment(&mut command, &group.environment);
            spec.give_to(&mut command)?;
            Ok(command)
        };
        let specs = self.specs(NAME, &group.devices, folder);
        specs.iter().map(start).collect::<io::Result<_>>().map_err(failed("find this program"))
    }

    /// Starts PyTorch, if it is installed and loads the same NCCL.
    fn torch(
        &self,
        what: &Measure,
        machine: &Machine,
        group: &Placement,
        folder: &Path,
    ) -> Result<Result<Session, String>, RunError> {
        let script = folder.join("nccl.py");
        fs::write(&script, SCRIPT).map_err(failed("write the script for PyTorch"))?;
        let rank = |(rank, device): (usize, &usize)| {
            let mut command = Command::new(&what.python);
            set_environment(&mut command, &group.environment);
            command.arg(&script).arg(folder.join("torch-store"));
            command.args([rank, group.devices.len(), *device].map(|number| number.to_string()));
            // PyTorch uses the preloaded library.
            command.env("LD_PRELOAD", &machine.libnccl);
            command
        };
        let commands: Vec<Command> = group.devices.iter().enumerate().map(rank).collect();
        Ok(Session::start(commands, 2 * self.call_timeout).and_then(|(session, libraries)| {
            let theirs = libraries[0].trim();
            let is_same = fs::canonicalize(theirs).is_ok_and(|theirs| theirs == machine.libnccl);
            let other = || format!("it loads {theirs} instead of {}", machine.libnccl.display());
            if is_same { Ok(session) } else { Err(other()) }
        }))
    }
}

impl Measured {
    /// Measures once, unless this implementation has already failed.
    fn measure(
        &mut self,
        (name, ranks): (&str, usize),
        bytes: usize,
        round: usize,
        record: &mut dyn FnMut(Record) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let asked = if self.subject == Subject::Copy { "copy" } else { name };
        let calls = (MOVED / bytes.max(1)).clamp(1, CALLS_MAX);
        match session.ask(&Request { name: asked.into(), bytes, calls }) {
            Ok(seconds) => {
                let (collective, subject) = (name.to_owned(), self.subject);
                record(Record::Speed(Speed { collective, ranks, bytes, round, subject, seconds }))
            }
            Err(why) => {
                self.session = None;
                let who = format!("{:?}, {name} of {bytes} bytes and all after that", self.subject);
                record(not_measured(ranks, &who, &why))
            }
        }
    }
}

fn not_measured(ranks: usize, who: &str, why: &str) -> Record {
    let ranks = if ranks == 1 { "one rank".to_owned() } else { format!("{ranks} ranks") };
    Record::NotMeasured(format!("{ranks}, {who}: {why}"))
}
