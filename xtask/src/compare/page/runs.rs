//! The section on machines, versions and limits.

use std::collections::{BTreeMap, BTreeSet};

use comm_cli::__private::units::short;

use super::super::library::{is_ours, position};
use super::super::record::{Failure, Limit, Record, Run};
use super::table;

/// Returns the section with every run that has measurements, and with the collectives of each if
/// there are several.
pub(super) fn section(records: &[Record]) -> String {
    let mut measured: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for record in records {
        if let Record::Time(time) = record {
            measured.entry(time.run).or_default().insert(time.case.collective.name());
        }
    }
    let names = |run: &u64| match &measured[run] {
        _ if measured.len() == 1 => String::new(),
        some => format!(", {}", some.iter().copied().collect::<Vec<_>>().join(", ")),
    };
    let runs = records.iter().filter_map(|record| match record {
        Record::Run(run) if measured.contains_key(&run.run) => Some(run),
        _ => None,
    });
    let runs: String = runs.map(|run| describe(run, &names(&run.run), records)).collect();
    format!("## The machine\n\n{runs}{}", failures(records))
}

fn describe(run: &Run, collectives: &str, records: &[Record]) -> String {
    let Run { date, commit, machine, .. } = run;
    let cache = match machine.cache_mib {
        0 => String::new(),
        mib => format!(" a last-level cache of {mib} MiB,"),
    };
    let mut text = format!(
        "{date}, commit `{commit}`{collectives}: {}, {} cores,{cache} {} GiB of memory, Linux {}; the system's congestion control is {}.\n\n",
        machine.cpu, machine.cores, machine.memory_gib, machine.kernel, machine.congestion_control
    );
    let mut libraries: Vec<(&str, &str)> = records
        .iter()
        .filter_map(|record| match record {
            Record::Version(library) if library.run == run.run && !is_ours(&library.library) => {
                Some((&*library.library, &*library.version))
            }
            _ => None,
        })
        .collect();
    libraries.sort_by_cached_key(|(name, _)| position(name));
    text += &libraries.iter().map(|(name, version)| format!("- {name}: {version}\n")).collect::<String>();
    for record in records {
        match record {
            Record::Missing(missing) if missing.run == run.run => {
                text += &format!("- {}: not measured. {}\n", missing.library, missing.reason);
            }
            _ => {}
        }
    }
    let limits: Vec<&Limit> = records
        .iter()
        .filter_map(|record| match record {
            Record::Limit(limit) if limit.run == run.run => Some(limit),
            _ => None,
        })
        .collect();
    if !limits.is_empty() {
        let head = ["limits of the machine", "", ""].map(String::from);
        let row = |limit: &&Limit| {
            vec![limit.limit.clone(), limit.detail.clone(), format!("{} {}", short(limit.value), limit.unit)]
        };
        text += &format!("\n{}", table(&head, &limits.iter().map(row).collect::<Vec<_>>()));
    }
    text.trim_end().to_owned() + "\n\n"
}

/// Lists the failures without a later success, each once.
fn failures(records: &[Record]) -> String {
    let failures: BTreeSet<String> = records
        .iter()
        .filter_map(|record| match record {
            Record::Failure(failure) if !was_measured_later(failure, records) => {
                let (library, case, reason) = (&failure.library, failure.case, &failure.reason);
                Some(format!("- {library}, {case}: {reason}\n"))
            }
            _ => None,
        })
        .collect();
    if failures.is_empty() {
        return String::new();
    }
    format!("These failed:\n\n{}\n", failures.into_iter().collect::<String>())
}

fn was_measured_later(failure: &Failure, records: &[Record]) -> bool {
    records.iter().any(|record| match record {
        Record::Time(time) => {
            time.run > failure.run && (&time.library, time.case) == (&failure.library, failure.case)
        }
        _ => false,
    })
}
