//! `commctl doctor`: says why a program hung or failed, and whether hosts are fit for a job.

pub(crate) mod analysis;
pub(crate) mod clocks;
mod export;
mod folder;
mod host;
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

/// Say whether hosts are fit for a job, or with --flight, which rank is at fault after a failure
#[derive(Debug, Args)]
#[command(after_help = "\
Without --flight, this host is checked: its name, network, limits, memory, folders and processors, for a job of -n ranks here and \
--world ranks in all. Started as the ranks of a job, it checks all hosts, and measures the link between each pair of ranks \
and the clocks. The first line is the worst problem; the exit status is 1 if a job would fail.

If COMM_FLIGHT_DIR names a folder, each rank writes its last calls there when a communicator fails: at the deadline of a \
call, or when a rank dies, aborts or makes a different call. A rank that hangs or was killed writes nothing, which this \
report states. On several hosts, use a shared folder, or copy all files to one.

The first line names the rank at fault in the group that failed first. A table of the ranks of each group follows. Ranks are \
those of the world.

Examples:
  commctl doctor -n 8 --world 64
  commctl run -n 2 --nnodes 2 --rendezvous HOST:29500 -- commctl doctor
  COMM_FLIGHT_DIR=out/flight COMM_TIMEOUT_S=30 commctl run -n 4 -- path/to/your/program
  commctl doctor --flight out/flight")]
pub(crate) struct Doctor {
    /// The folder with the files of the ranks
    #[arg(long, value_name = "DIR", conflicts_with_all = ["local_ranks", "world"])]
    flight: Option<PathBuf>,

    /// The number of ranks on this host [default: one per core]
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    local_ranks: Option<usize>,

    /// The number of ranks on all hosts [default: those of this host]
    #[arg(long, value_name = "N")]
    world: Option<usize>,

    /// A folder to which ranks write, such as the folder of checkpoints; may be repeated
    #[arg(long = "folder", value_name = "DIR", conflicts_with = "flight")]
    folders: Vec<PathBuf>,

    /// Print JSON: with --flight, one object per line and group
    #[arg(long)]
    json: bool,

    /// Also write files for PyTorch's torchfrtrace, one per rank, at PREFIX followed by the rank
    #[arg(long, value_name = "PREFIX", requires = "flight")]
    export_torch: Option<PathBuf>,

    /// Also write the calls of all ranks to FILE, as a trace that Perfetto and chrome://tracing show
    #[arg(long, value_name = "FILE", requires = "flight")]
    export_trace: Option<PathBuf>,
}

impl Doctor {
    pub(crate) fn execute(&self) -> Result<()> {
        let Some(flight) = &self.flight else {
            let size = host::GivenSize { local_ranks: self.local_ranks, world: self.world };
            return host::run(size, &self.folders, self.json);
        };
        let folder = Folder::read(flight)?;
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
