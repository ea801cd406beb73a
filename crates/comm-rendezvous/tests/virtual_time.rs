//! Failures of ranks and of their connections to the store, in virtual time.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use comm_core::{Error, Membership, Result};
use comm_rendezvous::{Member, Rendezvous};
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
                let own = clock.clone();
                let stop = Incident::Stop { rank, lasting: 4 * TIMEOUT };
                clock.before_operation(operation, move || own.inject(stop));
            }
            true
        });
        assert_waits_for(&outcomes[0], &[2]);
        assert_waits_for(&outcomes[1], &[2]);
    }
}

#[test]
fn a_rank_whose_connection_to_the_store_breaks_is_named_by_the_rank_that_serves_it() {
    let outcomes = outcomes(2, |clock, rank| {
        if rank == 1 {
            let own = clock.clone();
            clock.before_operation(3, move || own.inject(Incident::StoreReset { rank }));
        }
        true
    });
    assert!(matches!(outcomes[0], Err(Error::Aborted { by: 1, .. })), "{outcomes:?}");
    assert!(matches!(outcomes[1], Err(Error::PeerLost { peer: 0, .. })), "{outcomes:?}");
}
