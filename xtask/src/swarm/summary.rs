//! The summary of many runs.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use comm_sim::network::Incident;
use comm_sim::swarm::PassedRun;

/// Counts of the runs that passed, which show that faults happened and were noticed.
#[derive(Debug, Default)]
pub(super) struct Summary {
    seeds: u64,
    runs: u64,
    /// A hash of every operation of all runs, in whatever order the seeds ended.
    digest: u64,
    without_faults: u64,
    failed_calls: usize,
    shrunk: usize,
    entered: usize,
    incidents: BTreeMap<&'static str, usize>,
}

impl Summary {
    pub(super) const fn runs(&self) -> u64 {
        self.runs
    }

    pub(super) const fn seeds(&self) -> u64 {
        self.seeds
    }

    /// Adds the runs of one seed.
    pub(super) fn add(&mut self, runs: &[PassedRun]) {
        self.seeds += 1;
        runs.iter().for_each(|passed| self.add_run(passed));
    }

    fn add_run(&mut self, passed: &PassedRun) {
        self.runs += 1;
        self.digest = self.digest.wrapping_add(passed.digest);
        self.without_faults += u64::from(passed.incidents.is_empty());
        self.failed_calls += passed.failed_calls;
        self.shrunk += passed.shrunk;
        self.entered += passed.entered;
        for (_, incident) in &passed.incidents {
            *self.incidents.entry(name(incident)).or_default() += 1;
        }
    }

    pub(super) fn write(&self, out: &mut impl Write, first: u64, time: Duration) -> io::Result<()> {
        let Self { seeds, runs, digest, without_faults, failed_calls, shrunk, entered, incidents } = self;
        let counts: Vec<String> = incidents.iter().map(|(name, count)| format!("{count} {name}")).collect();
        writeln!(
            out,
            "all properties hold in {runs} runs of {seeds} seeds from {first} on, in {:.1} s; digest {digest:016x}",
            time.as_secs_f64()
        )?;
        writeln!(out, "faults: {}; runs without faults: {without_faults}", counts.join(", "))?;
        writeln!(out, "failed calls: {failed_calls}; ranks that went on in a smaller group: {shrunk}")?;
        writeln!(out, "ranks that entered a group of a rendezvous: {entered}")
    }
}

const fn name(incident: &Incident) -> &'static str {
    match incident {
        Incident::Death { .. } => "deaths",
        Incident::Vanish { .. } => "power losses",
        Incident::Break { .. } => "resets",
        Incident::Cut { .. } => "cuts",
        Incident::Stop { .. } => "stops",
        Incident::Slow { .. } => "slow ranks",
        Incident::ClockJump { .. } => "clock jumps",
        Incident::Corruption { .. } => "corruptions",
        Incident::Duplication { .. } => "duplications",
        Incident::StoreReset { .. } => "resets of the store",
        Incident::StoreStall { .. } => "stalls of the store",
        Incident::StoreEnd => "ends of the store",
        _ => "other",
    }
}
