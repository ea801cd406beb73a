//! Finds a small plan that fails like a given one.

use std::time::{Duration, Instant};

use super::plan::{Moment, Plan};
use super::{FailedRun, RankProgram, run_plan};
use crate::network::FaultPlan;

/// The longest time to spend.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Returns the failure of the smallest plan found that violates the same property.
pub(super) fn minimize(mut failure: FailedRun, program: &RankProgram<'_>) -> FailedRun {
    let end = Instant::now() + TIME_MAX;
    loop {
        let smaller = candidates(&failure.plan).into_iter().find_map(|plan| {
            let is_late = Instant::now() > end;
            let found = if is_late { None } else { run_plan(&plan, program).err() };
            found.filter(|found| found.violation.property == failure.violation.property)
        });
        match smaller {
            Some(smaller) => failure = *smaller,
            None => return failure,
        }
    }
}

/// Returns plans that are smaller, the smallest first.
fn candidates(plan: &Plan) -> Vec<Plan> {
    let mut smaller = Vec::new();
    let mut add = |change: &dyn Fn(&mut Plan)| {
        let mut candidate = plan.clone();
        change(&mut candidate);
        if candidate != *plan {
            smaller.push(candidate);
        }
    };
    for at in 0..plan.faults.len() {
        add(&|plan| drop(plan.faults.remove(at)));
    }
    for steps in [1, plan.steps / 2, plan.steps.saturating_sub(1)] {
        add(&|plan| plan.steps = steps.clamp(1, plan.steps));
    }
    for ranks in [2, plan.ranks.saturating_sub(1)] {
        add(&|plan| plan.ranks = ranks.max(2).min(plan.ranks));
    }
    add(&|plan| {
        let FaultPlan { checksums, keepalive, defect, .. } = plan.network;
        plan.network = FaultPlan { checksums, keepalive, defect, ..FaultPlan::calm() };
    });
    add(&|plan| plan.network.on_demand = false);
    add(&|plan| plan.network.short = false);
    add(&|plan| plan.network.stalls = None);
    add(&|plan| plan.network.jitter = Duration::ZERO);
    for at in 0..plan.faults.len() {
        for index in 0..plan.faults[at].incidents.len() {
            if plan.faults[at].incidents.len() > 1 {
                add(&|plan| {
                    let _ = plan.faults[at].incidents.remove(index);
                });
            }
        }
        add(&|plan| {
            if let Moment::Operation { operation, .. } | Moment::Change { operation, .. } =
                &mut plan.faults[at].moment
            {
                *operation = (*operation / 2).max(1);
            }
        });
    }
    smaller
}
