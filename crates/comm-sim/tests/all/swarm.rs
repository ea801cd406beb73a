//! Every property of a run can be violated, and is then reported with the smallest plan.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use comm_core::{ChannelId, ChannelKind, During, Error, Fabric, GroupId, Loss, Result, Transport};
use comm_sim::network::{Incident, NetworkFabric, NetworkTransport};
use comm_sim::swarm::{self, FailedRun, FaultKind, Knobs, Plan, Property, SwarmRank};

fn open(fabric: &NetworkFabric) -> Result<NetworkTransport> {
    let channel = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };
    fabric.open(channel, fabric.now() + Duration::from_secs(1))
}

/// Runs programs until one fails.
fn failed(knobs: &Knobs, program: impl Fn(NetworkFabric, &SwarmRank<'_>) -> Result<()> + Sync) -> FailedRun {
    *(0..100).find_map(|seed| swarm::run_seed(seed, knobs, &program).err()).unwrap()
}

#[track_caller]
fn assert_found(
    property: Property,
    text: &str,
    program: impl Fn(NetworkFabric, &SwarmRank<'_>) -> Result<()> + Sync,
) {
    let failure = failed(&Knobs::default(), program);
    assert_eq!(failure.violation.property, property, "{failure}");
    assert!(failure.to_string().contains(text), "{failure}");
    // Neither faults nor other ranks are needed.
    let Plan { ranks, steps, faults, .. } = &failure.plan;
    assert!(*ranks == 2 && *steps == 1 && faults.is_empty(), "{failure}");
}

#[test]
fn a_panic_is_found() {
    assert_found(Property::NoPanic, "rank 1: I am 1", |_, rank| {
        assert!(rank.number() != 1, "I am 1");
        Ok(())
    });
}

#[test]
fn a_deadlock_is_found() {
    assert_found(Property::NoDeadlock, "[0, 1]", |_, rank| {
        rank.clock().sleep(Duration::from_secs(30 * 24 * 3600));
        Ok(())
    });
}

#[test]
fn a_wrong_result_is_found() {
    assert_found(Property::RightResults, "rank 0: 1 + 1 = 3", |_, rank| {
        if rank.number() == 0 {
            rank.wrong("1 + 1 = 3");
        }
        Ok(())
    });
}

#[test]
fn a_late_return_is_found() {
    assert_found(Property::Deadline, "rank 1: nap took", |_, rank| {
        rank.call("nap", rank.timeout(), || {
            rank.clock().sleep(rank.timeout() * (1 + rank.number() as u32));
            Ok(())
        })
    });
}

#[test]
fn a_transport_that_is_not_dropped_is_found() {
    assert_found(Property::NoLeak, "1", |fabric, rank| {
        let transport = rank.call("open", rank.timeout(), || open(&fabric))?;
        if rank.number() == 0 {
            std::mem::forget(transport);
        }
        Ok(())
    });
}

fn lost(peer: usize) -> Error {
    Error::PeerLost { peer, during: During::Idle, loss: Loss::Closed }
}

#[test]
fn an_error_without_a_fault_is_found() {
    assert_found(Property::RankAtFault, "rank 0 in call", |_, rank| {
        if rank.number() == 0 { rank.call("call", rank.timeout(), || Err(lost(1))) } else { Ok(()) }
    });
}

#[test]
fn an_error_that_names_an_innocent_rank_is_found_with_the_fault() {
    let knobs = Knobs::default().ranks(3..=6).faults(vec![FaultKind::Death, FaultKind::Slow]);
    let failure = failed(&knobs, |fabric, rank| {
        let mut transport = rank.call("open", rank.timeout(), || open(&fabric))?;
        let next = (rank.number() + 1) % transport.group().size();
        rank.call("recv", Duration::MAX, || {
            for _ in 0..1000 {
                match transport.try_recv(next, &mut [0]) {
                    // It names the rank after the one that died.
                    Err(Error::PeerLost { peer, .. }) => {
                        return Err(lost((peer + 1) % transport.group().size()));
                    }
                    outcome => drop(outcome?),
                }
                rank.clock().sleep(Duration::from_millis(10));
            }
            Ok(())
        })
    });
    assert_eq!(failure.violation.property, Property::RankAtFault, "{failure}");
    let incidents: Vec<_> = failure.plan.faults.iter().flat_map(|fault| &fault.incidents).collect();
    assert!(matches!(incidents[..], [Incident::Death { .. }]), "{failure}");
}

#[test]
fn plans_depend_on_the_seed_and_contain_every_kind_of_fault() {
    let plans: Vec<Plan> = (0..300).map(|seed| Plan::draw(seed, &Knobs::default())).collect();
    assert_eq!(plans[7], Plan::draw(7, &Knobs::default()));
    for kind in FaultKind::ALL {
        let count = plans.iter().filter(|plan| plan.faults.iter().any(|fault| fault.kind == kind)).count();
        assert!(count > 10, "{kind:?} is in {count} plans");
    }
    let without = plans.iter().filter(|plan| plan.faults.is_empty()).count();
    assert!((30..200).contains(&without), "{without} plans have no faults");
}

#[test]
fn a_search_for_a_smaller_plan_ends() {
    let runs = AtomicUsize::new(0);
    let failure = failed(&Knobs::default(), |_, rank| {
        runs.fetch_add(usize::from(rank.number() == 0), Ordering::Relaxed);
        rank.wrong("always");
        Ok(())
    });
    assert!(runs.into_inner() < 100, "{failure}");
}
