//! comm, measured by `commctl perf`.

use std::path::PathBuf;
use std::process::Command;

use super::{Library, MeasurementArgs, OURS};
use crate::compare::args::{Compare, Transport};
use crate::compare::built;
use crate::compare::collective::Collective;
use crate::compare::record::Case;

/// comm over one transport.
#[derive(Debug)]
struct Ours {
    commctl: PathBuf,
    transport: Transport,
}

/// Returns this library, once per transport.
pub(super) fn all(compare: &Compare) -> Vec<(Box<dyn Library>, String)> {
    let ours = |transport: &Transport| {
        let ours = Ours { commctl: built("commctl"), transport: *transport };
        (Box::new(ours) as Box<dyn Library>, format!("comm {}", env!("CARGO_PKG_VERSION")))
    };
    compare.transport.iter().map(ours).collect()
}

impl Library for Ours {
    fn name(&self) -> String {
        format!("{OURS}-{}", self.transport.name())
    }

    fn command(&self, args: &MeasurementArgs<'_>) -> Command {
        let Compare { samples, sample_ms, factor, min, max, .. } = args.compare;
        let Case { collective, ranks, rotates } = args.case;
        let mut options = vec![
            ("--ranks", ranks.to_string()),
            ("--samples", samples.to_string()),
            ("--sample-ms", sample_ms.to_string()),
        ];
        let mut command = Command::new(&self.commctl);
        command.args(["perf", collective.name(), "--json"]).args(self.transport.options());
        // A barrier has no size and no result.
        if collective != Collective::Barrier {
            options.push(("--min", min.max(&1).to_string()));
            options.push(("--max", collective.at_most(*max).to_string()));
            options.push(("--factor", factor.to_string()));
            if args.check {
                command.arg("--check");
            }
            if rotates {
                options.push(("--rotate", args.rotated_bytes().to_string()));
            }
        }
        for (name, value) in options {
            command.args([name, &value]);
        }
        command
    }
}
