//! The ring all-reduce of ferrotorch-distributed, from crates.io: a program in a workspace of its
//! own, built when it is asked for, which takes some minutes.

use std::path::PathBuf;
use std::process::Command;

use super::{Search, Start, Subject, build};
use crate::compare::build::Places;
use crate::compare::collective::Collective;

pub(super) const NAME: &str = "ferrotorch";

#[derive(Debug)]
struct Ferrotorch {
    program: PathBuf,
}

pub(super) fn find(places: &Places) -> Search {
    let (source, target) = (places.sources().join("ferrotorch"), places.built().join("ferrotorch"));
    let mut command = Command::new("cargo");
    command
        .args(["build", "--quiet", "--release", "--locked", "--target-dir"])
        .arg(&target)
        .current_dir(source);
    let program = build(&mut command, &target.join("release/ferrotorch-peer"))?;
    Ok((Box::new(Ferrotorch { program }), "ferrotorch-distributed 0.6.2, its ring over TCP".into()))
}

impl Subject for Ferrotorch {
    fn name(&self) -> String {
        NAME.into()
    }

    fn measures(&self, collective: Collective) -> bool {
        collective == Collective::AllReduce
    }

    fn command(&self, start: &Start<'_>) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(start.case.ranks.to_string()).args(start.words());
        command
    }
}
