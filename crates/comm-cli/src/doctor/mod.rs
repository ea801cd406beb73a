//! `commctl doctor`: says why a program hung or failed.

pub(crate) mod analysis;
mod clocks;
mod export;
mod folder;
mod json;
mod pickle;
mod table;
#[cfg(test)]
mod tests;
mod trace;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::error::{CliError, Result};
use analysis::{Finding, GroupRecords};
use folder::Folder;
pub(crate) use table::headline;

/// Compare the last calls of all ranks after a failure, and say which rank is at fault
#[derive(Debug, Args)]
#[command(after_help = "\
If COMM_FLIGHT_DIR names a folder, each rank writes its last calls there when a communicator fails: at the deadline of a \
call, or when a rank dies, aborts or makes a different call. A rank that hangs or was killed writes nothing, which this \
report states. On several hosts, use a shared folder, or copy all files to one.

The first line names the rank at fault in the group that failed first. A table of the ranks of each group follows. Ranks are \
those of the world.

Example:
  COMM_FLIGHT_DIR=out/flight COMM_TIMEOUT_S=30 commctl run -n 4 -- path/to/your/program
  commctl doctor --flight out/flight")]
pub(crate) struct Doctor {
    /// The folder with the files of the ranks
    #[arg(long, value_name = "DIR")]
    flight: PathBuf,

    /// Print one JSON object per line and group
    #[arg(long)]
    json: bool,

    /// Also write files for PyTorch's torchfrtrace, one per rank, at PREFIX followed by the rank
    #[arg(long, value_name = "PREFIX")]
    export_torch: Option<PathBuf>,

    /// Also write the calls of all ranks to FILE, as a trace that Perfetto and chrome://tracing show
    #[arg(long, value_name = "FILE")]
    export_trace: Option<PathBuf>,
}

impl Doctor {
    pub(crate) fn execute(&self) -> Result<()> {
        let folder = Folder::read(&self.flight)?;
        let groups = GroupRecords::of(&folder.records);
        let findings: Vec<(&GroupRecords<'_>, Finding)> =
            groups.iter().map(|group| (group, Finding::of(group))).collect();
        let mut out = io::stdout().lock();
        let write = if self.json { json::write } else { table::write };
        write(&mut out, &folder, &findings)
            .and_then(|()| out.flush())
            .map_err(CliError::write("standard output"))?;
        if let Some(prefix) = &self.export_torch {
            export::write(prefix, &groups)?;
        }
        if let Some(file) = &self.export_trace {
            trace::write(file, &groups)?;
        }
        Ok(())
    }
}
