//! The Intel MPI Benchmarks, as Intel built them.

use std::process::Command;

use super::mpi::Installation;
use super::{Library, MeasurementArgs, Search, sources};
use crate::compare::collective::Collective;
use crate::compare::record::Case;

/// IMB over Intel MPI.
#[derive(Debug)]
struct Imb(Installation);

pub(super) fn find(installation: Result<Installation, String>) -> Search {
    let installation = installation?;
    let version = format!("IMB-MPI1 of {}", installation.version);
    Ok((Box::new(Imb(installation)), version))
}

/// Returns the name of a benchmark, and whether it counts the bytes of a block instead of a buffer.
const fn benchmark(collective: Collective) -> Option<(&'static str, bool)> {
    match collective {
        Collective::AllReduce => Some(("Allreduce", false)),
        Collective::Broadcast => Some(("Bcast", false)),
        Collective::AllToAll => Some(("Alltoall", true)),
        Collective::AllGather => Some(("Allgather", true)),
        Collective::Barrier => Some(("Barrier", false)),
        Collective::SendRecv => Some(("PingPong", false)),
        // Its reduce-scatter counts otherwise.
        Collective::ReduceScatter => None,
    }
}

impl Library for Imb {
    fn name(&self) -> String {
        "impi-imb".into()
    }

    fn measures(&self, case: Case) -> bool {
        !case.rotates && benchmark(case.collective).is_some()
    }

    fn command(&self, args: &MeasurementArgs<'_>) -> Command {
        let Case { collective, ranks, .. } = args.case;
        let (benchmark, counts_blocks) = benchmark(collective).unwrap_or_default();
        let mut imb = self.0.launch(ranks);
        imb.arg(self.0.launcher.with_file_name("IMB-MPI1"));
        // Without the range of sizes, IMB measures longer messages with 4 MiB.
        imb.args(["-npmin", &ranks.to_string(), "-msglog", "0:28", benchmark]);
        let blocks = if counts_blocks { ranks } else { 1 };
        let sizes: Vec<String> = args.sizes.iter().map(usize::to_string).collect();
        let mut command = Command::new(sources().join("imb.sh"));
        command.args([blocks.to_string(), sizes.join(" ")]).arg(imb.get_program()).args(imb.get_args());
        command.envs(imb.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }
}
