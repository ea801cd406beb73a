//! The ring all-reduce of ferrotorch-distributed, in a separate workspace. It takes minutes to
//! build.

use std::path::PathBuf;
use std::process::Command;

use super::{Library, MeasurementArgs, Search, build, built_peers, sources};
use crate::compare::collective::Collective;
use crate::compare::record::Case;

pub(super) const NAME: &str = "ferrotorch";

#[derive(Debug)]
struct Ferrotorch {
    program: PathBuf,
}

pub(super) fn find() -> Search {
    let target = built_peers().join(NAME);
    let mut command = Command::new("cargo");
    command
        .args(["build", "--quiet", "--release", "--locked", "--target-dir"])
        .arg(&target)
        .current_dir(sources().join(NAME));
    let program = build(&mut command, &target.join("release/ferrotorch-peer"))?;
    Ok((Box::new(Ferrotorch { program }), "ferrotorch-distributed 0.6.2, its ring over TCP".into()))
}

impl Library for Ferrotorch {
    fn name(&self) -> String {
        NAME.into()
    }

    fn measures(&self, case: Case) -> bool {
        case.collective == Collective::AllReduce && !case.rotates
    }

    fn command(&self, args: &MeasurementArgs<'_>) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(args.case.ranks.to_string()).args(args.to_strings());
        command
    }
}
