//! Failures of ranks and of their connections to the store, in virtual time.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use comm_core::{Error, Membership, Result};
use comm_rendezvous::{Member, Rendezvous, WaitList};
use comm_sim::network::{self, FaultPlan, Incident, VirtualClock};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Joins a rendezvous whose store rank 0 serves, watches the others for a moment, and finishes it.
fn meet(clock: &VirtualClock, rank: usize, size: usize) -> Result<()> {
    let store = clock.store(Some(0));
    let mut member = Member::new(Membership { rank, size });
    (member.timeout, member.store_rank, member.clock) = (TIMEOUT, Some(0), network::now);
    let (rendezvous, _) = Rendezvous::join(&store, member, Ok(String::new()))?;
    clock.sleep(Duration::from_millis(10));
    match rendezvous.watch().map_or(Ok(()), |watch| watch.hold().check()) {
        Ok(()) => rendezvous.finish(),
        Err(error) => Err(rendezvous.fail(error)),
    }
}

/// Runs the ranks, and returns their outcomes. `prepare` is called first on each of them; a rank
/// for which it returns false does not arrive.
fn outcomes(size: usize, prepare: impl Fn(&VirtualClock, usize) -> bool + Sync) -> Vec<Result<()>> {
    network::run(size, 1, &FaultPlan::calm(), |fabric, clock| {
        let rank = comm_core::Fabric::group(&fabric).rank();
        // Rank 0 reaches its deadline first.
        clock.sleep(Duration::from_micros(100) * rank as u32);
        if prepare(&clock, rank) { meet(&clock, rank, size) } else { Ok(()) }
    })
}

/// Plans a fault of a rank before one of its operations on the store.
fn plan(clock: &VirtualClock, operation: u64, fault: Incident) {
    let own = clock.clone();
    clock.before_operation(operation, move || own.inject(fault));
}

fn assert_waits_for(outcome: &Result<()>, expected: &[usize]) {
    match outcome {
        Err(Error::Timeout { waiting_for, .. }) => assert_eq!(waiting_for, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_rank_that_serves_the_store_keeps_it_until_others_have_learned_which_rank_is_absent() {
    let outcomes = outcomes(3, |_, rank| rank != 2);
    assert_waits_for(&outcomes[0], &[2]);
    assert_waits_for(&outcomes[1], &[2]);
}

#[test]
fn a_rank_that_stops_before_it_ends_a_phase_is_named_alone() {
    // From the first operation after its claim to the last one before its channels are open.
    for operation in 4..=11 {
        let outcomes = outcomes(3, |clock, rank| {
            if rank == 2 {
                plan(clock, operation, Incident::Stop { rank, lasting: 4 * TIMEOUT });
            }
            true
        });
        assert_waits_for(&outcomes[0], &[2]);
        assert_waits_for(&outcomes[1], &[2]);
    }
}

#[test]
fn a_rank_whose_connection_to_the_store_breaks_after_its_claim_is_lost() {
    let outcomes = outcomes(2, |clock, rank| {
        if rank == 1 {
            plan(clock, 4, Incident::StoreReset { rank });
        }
        true
    });
    assert!(matches!(outcomes[0], Err(Error::PeerLost { peer: 1, .. })), "{outcomes:?}");
    assert!(outcomes[1].is_err(), "{outcomes:?}");
}

#[test]
fn a_rank_whose_connection_to_the_store_broke_before_its_claim_takes_part() {
    let outcomes = outcomes(2, |clock, rank| {
        if rank == 1 {
            plan(clock, 3, Incident::StoreReset { rank });
        }
        true
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn the_death_of_a_rank_is_noticed_although_its_connection_to_the_store_broke_before_its_claim() {
    // From the first operation after its new registration to the last one of the first phase.
    for operation in 5..=8 {
        let outcomes = outcomes(3, |clock, rank| {
            if rank == 2 {
                plan(clock, 3, Incident::StoreReset { rank });
                plan(clock, operation, Incident::Death { rank });
            }
            true
        });
        for outcome in &outcomes[..2] {
            assert!(matches!(outcome, Err(Error::PeerLost { peer: 2, .. })), "{operation}: {outcomes:?}");
        }
    }
}

#[test]
fn a_process_that_no_group_admits_waits_until_its_deadline() {
    let waited = network::run(1, 1, &FaultPlan::calm(), |_, clock| {
        let store = clock.store(None);
        let place = WaitList::new(&store, 0, 0).with_clock(network::now).enter(TIMEOUT).unwrap();
        let error = place.wait(TIMEOUT).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        clock.elapsed()
    });
    assert!((TIMEOUT..TIMEOUT + Duration::from_millis(100)).contains(&waited[0]), "{waited:?}");
}

/// A fabric keeps the watch for as long as it lives, and the check the former communicator.
#[test]
fn a_watch_does_not_keep_the_check_of_a_rendezvous_that_has_ended() {
    network::run(1, 1, &FaultPlan::calm(), |_, clock| {
        let store = clock.store(None);
        let former = Arc::new(());
        let (mut member, held) = (Member::new(Membership { rank: 0, size: 1 }), Arc::clone(&former));
        member.clock = network::now;
        member.check = Some(Arc::new(move || {
            let _ = &held;
            Ok(())
        }));
        let (rendezvous, _) = Rendezvous::join(&store, member, Ok(String::new())).unwrap();
        let watch = rendezvous.watch().unwrap();
        rendezvous.finish().unwrap();
        assert_eq!(Arc::strong_count(&former), 1);
        drop(watch);
    });
}
