//! Measures this library beside a copy of the device and beside PyTorch, in turns.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::on_this_machine;
use super::rival::Session;
use super::{RunError, Runner, failed};
use crate::record::{Record, Speed, Subject};
use crate::speed::{NAME, Question};
use crate::{Place, Several};

/// What PyTorch runs, which answers the same questions.
const SCRIPT: &str = include_str!("../../../../xtask/peers/nccl.py");

/// What is called by one rank: in place, nothing would move. By several, what training calls.
const ALONE: [&str; 2] = ["all_gather", "reduce_scatter"];
const TOGETHER: [&str; 4] = ["all_reduce", "all_gather", "reduce_scatter", "broadcast"];
/// What a device copies in a row before it is asked how long that took.
const MOVED: usize = 4 << 30;
const CALLS_MAX: usize = 100;

/// What is measured, and beside whom.
#[derive(Debug, Clone)]
pub struct Measure {
    /// Bytes of the larger buffer.
    pub sizes: Vec<usize>,
    /// How often everything is measured, each time by all in turn.
    pub rounds: usize,
    /// The Python that has PyTorch.
    pub python: PathBuf,
}

impl Measure {
    /// Sizes that a device can hold, from what a program waits for to what it is busy with.
    #[must_use]
    pub fn on(place: &Place, python: PathBuf) -> Self {
        let most = (place.memory_mib << 20) / 16;
        let sizes = [64 << 10, 1 << 20, 16 << 20, 256 << 20].into_iter().filter(|size| *size <= most);
        Self { sizes: sizes.collect(), rounds: 7, python }
    }
}

/// One subject, as long as it answers.
struct Measured {
    subject: Subject,
    session: Option<Session>,
}

impl Runner<'_> {
    /// Measures one rank, and several if there can be some, and hands on each time as it comes.
    ///
    /// # Errors
    /// If processes of this library cannot be started, and what `record` answers. What cannot be measured is a record.
    pub fn measure(
        &self,
        what: &Measure,
        place: &Place,
        several: &Result<Several, String>,
        record: &mut dyn FnMut(Record) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let alone = Several { devices: vec![self.device], environment: Vec::new() };
        self.measure_group(what, place, (&alone, &ALONE), record)?;
        match several {
            Ok(several) => self.measure_group(what, place, (several, &TOGETHER), record),
            Err(why) => record(Record::NotMeasured(format!("collectives of several ranks: {why}"))),
        }
    }

    fn measure_group(
        &self,
        what: &Measure,
        place: &Place,
        (group, names): (&Several, &[&str]),
        record: &mut dyn FnMut(Record) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let folder = tempfile::tempdir().map_err(failed("make a folder"))?;
        let ranks = group.devices.len();
        let ours = match Session::start(self.ours(group, folder.path())?, 2 * self.patience) {
            Ok((session, _)) => session,
            Err(why) => return record(not_measured(ranks, "this library", &why)),
        };
        // A copy is made by one rank while no other has anything to do.
        let alone = Several { devices: group.devices[..1].to_vec(), environment: Vec::new() };
        let copy_folder = tempfile::tempdir().map_err(failed("make a folder"))?;
        let copy = Session::start(self.ours(&alone, copy_folder.path())?, 2 * self.patience);
        let torch = self.torch(what, place, group, folder.path())?;
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
                // Nobody is always first.
                subjects.rotate_left(1);
                for measured in &mut subjects {
                    measured.measure((name, ranks), bytes, round, record)?;
                }
            }
        }
        Ok(())
    }

    /// Processes of this library that are measured.
    fn ours(&self, group: &Several, folder: &Path) -> Result<Vec<Command>, RunError> {
        let start = |part: &crate::Part| {
            let mut command = (self.start)()?;
            on_this_machine(&mut command, &group.environment);
            part.give_to(&mut command)?;
            Ok(command)
        };
        let parts = self.parts(NAME, &group.devices, folder);
        parts.iter().map(start).collect::<io::Result<_>>().map_err(failed("tell how a process is started"))
    }

    /// PyTorch, if it is there and runs the same NCCL.
    fn torch(
        &self,
        what: &Measure,
        place: &Place,
        group: &Several,
        folder: &Path,
    ) -> Result<Result<Session, String>, RunError> {
        let script = folder.join("nccl.py");
        fs::write(&script, SCRIPT).map_err(failed("write the script for PyTorch"))?;
        let rank = |(rank, device): (usize, &usize)| {
            let mut command = Command::new(&what.python);
            on_this_machine(&mut command, &group.environment);
            command.arg(&script).arg(folder.join("torch-store"));
            command.args([rank, group.devices.len(), *device].map(|number| number.to_string()));
            // Whoever asks for a library of this name is given the one that is there.
            command.env("LD_PRELOAD", &place.libnccl);
            command
        };
        let commands: Vec<Command> = group.devices.iter().enumerate().map(rank).collect();
        Ok(Session::start(commands, 2 * self.patience).and_then(|(session, said)| {
            let theirs = said[0].trim();
            let is_same = fs::canonicalize(theirs).is_ok_and(|theirs| theirs == place.libnccl);
            let other = || format!("it runs {theirs}, and not {}", place.libnccl.display());
            if is_same { Ok(session) } else { Err(other()) }
        }))
    }
}

impl Measured {
    /// Measures once, unless this one failed before, or has been measured by another name.
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
        match session.ask(&Question { name: asked.into(), bytes, calls }) {
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
