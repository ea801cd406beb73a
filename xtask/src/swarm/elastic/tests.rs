//! Growth with one fault, before each operation of each process.

use std::time::Duration;

use comm_sim::network::{FaultPlan, Incident};
use comm_sim::swarm::{self, Moment, PassedRun, Plan};

use super::*;
use crate::swarm::every_moment::{before_operations, with_fault_at};

/// A plan with some founders, and one process that joins while they make steps.
fn plan_with_founders(founders: usize) -> Plan {
    let knobs = knobs().ranks(founders + 1..=founders + 1).steps(4..=4);
    let members: Vec<usize> = (0..=founders).collect();
    let grown = format!("is in a group of ranks {members:?}");
    let is_suitable = |plan: &Plan| {
        let run = swarm::run_plan(plan, &run).unwrap();
        let joins = run.log.iter().any(|entry| entry.text == grown);
        joins && run.entered == 2 * founders + 1
    };
    let mut plans = (0..).map(|seed| {
        let mut plan = Plan::draw(seed, &knobs);
        (plan.network, plan.faults) = (FaultPlan::calm(), Vec::new());
        plan
    });
    plans.find(is_suitable).unwrap()
}

/// Runs a plan with each of these faults before each operation of each process.
fn with_faults(kind: FaultKind, fault: impl Fn(usize) -> Incident) -> Vec<PassedRun> {
    let calm = plan_with_founders(2);
    let of_rank = |rank| with_fault_at(&run, &calm, (kind, fault(rank)), before_operations(rank, 1));
    let runs: Vec<PassedRun> = (0..calm.ranks).flat_map(of_rank).collect();
    assert!(runs.len() > 300, "{} runs with {kind:?}", runs.len());
    runs
}

/// Returns the time that a process took to join.
fn time_to_join(run: &PassedRun, process: usize) -> Option<Duration> {
    let at = |text: &str| {
        let mut entries = run.log.iter().filter(|entry| entry.rank == Some(process));
        entries.find(|entry| entry.text == text).map(|entry| entry.at)
    };
    Some(at("ends join")? - at("begins join")?)
}

#[test]
fn all_members_agree_on_the_group_when_the_connections_of_one_to_the_store_break() {
    with_faults(FaultKind::StoreReset, |rank| Incident::StoreReset { rank });
}

#[test]
fn a_process_that_was_admitted_by_a_leader_that_died_is_soon_admitted_by_the_next_one() {
    for run in with_faults(FaultKind::Death, |rank| Incident::Death { rank }) {
        let joined = time_to_join(&run, 2);
        assert!(joined.is_none_or(|time| time < Duration::from_millis(2500)), "{joined:?}: {run:?}");
    }
}

#[test]
fn a_group_goes_on_when_the_store_ends_or_stalls_while_it_grows() {
    for lasting in [Duration::from_millis(100), Duration::from_secs(3)] {
        with_faults(FaultKind::StoreStall, |_| Incident::StoreStall { lasting });
    }
    with_faults(FaultKind::StoreEnd, |_| Incident::StoreEnd);
}

/// Runs the plan with this fault before every third operation of a rank since the beginning of the
/// first growth. All of them would take minutes.
fn with_fault_of_growth(calm: &Plan, rank: usize, kind: FaultKind, incident: Incident) -> Vec<PassedRun> {
    let operations = (1 + rank as u64..).step_by(3);
    let moments = operations.map(|operation| Moment::Change { rank, change: 1, operation });
    let runs = with_fault_at(&run, calm, (kind, incident), moments);
    assert!(runs.len() > 30, "{} runs with {incident}", runs.len());
    runs
}

/// Some members may have passed a barrier, or know that all have, and others not.
#[test]
fn all_members_agree_on_the_group_when_one_of_them_is_lost_while_they_grow() {
    let calm = plan_with_founders(3);
    for rank in [0, 1] {
        with_fault_of_growth(&calm, rank, FaultKind::Death, Incident::Death { rank });
    }
    with_fault_of_growth(&calm, 2, FaultKind::Vanish, Incident::Vanish { rank: 2 });
}

/// One of the two members may not know the result of the agreement, while the third one does. Two
/// of the three can always go on in the former group, and the new one of four can be too small.
#[test]
fn members_are_in_the_same_group_when_a_link_between_two_of_them_breaks_while_they_grow() {
    let calm = plan_with_founders(3);
    let broken = Incident::Break { between: (0, 1) };
    for run in with_fault_of_growth(&calm, 0, FaultKind::Reset, broken) {
        let separated = run.log.iter().find(|entry| entry.text.contains("at least 2 are required"));
        assert!(separated.is_none(), "{separated:?}: {run:?}");
    }
}
