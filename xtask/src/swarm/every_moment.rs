//! Runs of a plan with one fault at each of many moments.

use comm_sim::network::Incident;
use comm_sim::swarm::{self, FaultKind, Moment, PassedRun, Plan, PlannedFault, RankProgram};

/// Runs a plan with this fault at each of the moments, until one of them does not come.
pub(super) fn with_fault_at(
    program: &RankProgram<'_>,
    calm: &Plan,
    (kind, incident): (FaultKind, Incident),
    moments: impl Iterator<Item = Moment>,
) -> Vec<PassedRun> {
    let runs = moments.map(|moment| {
        let mut plan = calm.clone();
        plan.faults = vec![PlannedFault::new(kind, moment, vec![incident])];
        swarm::run_plan(&plan, program).unwrap_or_else(|failure| panic!("{failure}"))
    });
    runs.take_while(|run| !run.incidents.is_empty()).collect()
}

/// Returns the moments before every `step`th operation of a rank.
pub(super) fn before_operations(rank: usize, step: usize) -> impl Iterator<Item = Moment> {
    (1..).step_by(step).map(move |operation| Moment::Operation { rank, operation })
}
