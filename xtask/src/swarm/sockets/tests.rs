//! One fault before each operation of the ranks of a small job over sockets.

use comm_sim::network::{FaultPlan, Incident};
use comm_sim::swarm::{self, Plan};

use super::*;
use crate::swarm::every_moment::{before_operations, with_fault_at};

/// The pairs of the two ranks and the process that serves the store.
const PAIRS: [(usize, usize); 3] = [(0, 1), (0, 2), (1, 2)];

/// Returns a plan of two ranks that meet in the store of a launcher and make a step, with this
/// setting.
fn plan(is_suitable: fn(&Settings) -> bool) -> Plan {
    let mut plans = (0..).map(|seed| {
        let mut plan = Plan::draw(seed, &knobs().ranks(3..=3).steps(1..=1));
        (plan.network, plan.faults) = (FaultPlan::calm(), Vec::new());
        plan
    });
    let found = plans.find(|plan| {
        let passed = swarm::run_plan(plan, &|fabric, rank: &SwarmRank<'_>| {
            if is_suitable(&Settings::draw(rank)) { run(fabric, rank) } else { Ok(()) }
        });
        let log = passed.unwrap().log;
        let is_launched = !log.iter().any(|entry| entry.rank == Some(2));
        is_launched && log.iter().any(|entry| entry.text == "is in a group of ranks [0, 1]")
    });
    found.unwrap()
}

/// Runs the plan with a fault before every second operation of one of the two ranks. All of them
/// would take a minute.
fn with_fault(calm: &Plan, rank: usize, kind: FaultKind, incident: Incident) {
    let runs = with_fault_at(&run, calm, (kind, incident), before_operations(rank, 2));
    assert!(runs.len() > 10, "{} runs with {incident} of rank {rank}", runs.len());
}

#[test]
fn bytes_that_are_altered_at_any_operation_are_an_error_or_harm_nothing() {
    for calm in [plan(|it| it.secret.is_none()), plan(|it| it.secret.is_some())] {
        for (from, to) in PAIRS.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]) {
            let rank = if from == 2 { to } else { from };
            with_fault(&calm, rank, FaultKind::Corruption, Incident::Corruption { from, to });
            with_fault(&calm, rank, FaultKind::Duplication, Incident::Duplication { from, to });
        }
    }
}

#[test]
fn a_link_that_breaks_at_any_operation_is_an_error_of_its_ends() {
    let calm = plan(|_| true);
    for between in PAIRS {
        with_fault(&calm, between.0, FaultKind::Reset, Incident::Break { between });
    }
}

#[test]
fn a_process_that_dies_at_any_operation_is_named() {
    let calm = plan(|_| true);
    for (rank, at) in (0..3).flat_map(|rank| [(rank, 0), (rank, 1)]) {
        with_fault(&calm, at, FaultKind::Death, Incident::Death { rank });
        with_fault(&calm, at, FaultKind::Vanish, Incident::Vanish { rank });
    }
}
