//! Rendezvous through an in-memory store: every rank is a thread.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use comm_core::{During, Error, Loss, Membership, Refusal, Result, Store};
use comm_rendezvous::{Endpoint, Member, Rendezvous, WaitList, Watch, connect};
use comm_sim::{MemoryStore, run_each};

/// Longer than any wait of a test that passes.
const SOON: Duration = Duration::from_secs(60);

fn member(rank: usize, size: usize) -> Member {
    let mut member = Member::new(Membership { rank, size });
    member.timeout = SOON;
    member
}

/// Joins the rendezvous, and returns the records of all ranks.
fn join(store: &dyn Store, member: Member) -> Result<Vec<String>> {
    let record = format!("record of {}", member.rank);
    let (rendezvous, records) = Rendezvous::join(store, member, Ok(record))?;
    rendezvous.finish()?;
    Ok(records)
}

fn all(size: usize) -> Vec<usize> {
    (0..size).collect()
}

#[test]
fn every_rank_gets_the_records_of_all() {
    for size in [1, 2, 3, 5, 8] {
        let store = MemoryStore::default();
        let expected: Vec<String> = (0..size).map(|rank| format!("record of {rank}")).collect();
        // Two rendezvous use the same job and round, one after the other.
        for _ in 0..2 {
            run_each(all(size), |rank| assert_eq!(join(&store, member(rank, size)).unwrap(), expected));
        }
    }
}

#[test]
fn a_rank_with_another_setting_gets_an_error_with_both_values() {
    let store = MemoryStore::default();
    run_each(all(3), |rank| {
        let mut member = member(rank, 3);
        let color = |rank| if rank == 1 { "red" } else { "blue" };
        member.settings.add("color", color(rank));
        match join(&store, member) {
            Err(Error::Handshake {
                refusal: Refusal::Setting { name, ours, theirs, rank: other }, ..
            }) => {
                assert_eq!(
                    (name.as_str(), ours.as_str(), theirs.as_str()),
                    ("color", color(rank), color(other))
                );
                assert!(other != rank && (rank == 1 || other == 1), "{rank}: {other}");
            }
            outcome => panic!("rank {rank}: {outcome:?}"),
        }
    });
}

#[test]
fn ranks_of_worlds_of_different_sizes_are_refused() {
    let store = MemoryStore::default();
    run_each(all(2), |rank| {
        let outcome = join(&store, member(rank, 2 + rank));
        let (ours, theirs) = (2 + rank, 3 - rank);
        let expected = Refusal::WorldSize { ours, theirs };
        assert!(
            matches!(&outcome, Err(Error::Handshake { refusal, .. }) if *refusal == expected),
            "{outcome:?}"
        );
    });
}

#[test]
fn a_rank_that_dies_before_all_have_finished_is_named_by_all_others() {
    for (size, dead) in [(2, 1), (3, 0), (5, 2), (8, 7)] {
        let store = MemoryStore::default();
        run_each(all(size), |rank| {
            let joined = Rendezvous::join(&store, member(rank, size), Ok(String::new()));
            let (rendezvous, _) = joined.unwrap();
            if rank == dead {
                // The store detects that the process has gone.
                drop(rendezvous);
                return;
            }
            let outcome = rendezvous.finish();
            let named =
                matches!(outcome, Err(Error::PeerLost { peer, loss: Loss::Closed, .. }) if peer == dead);
            assert!(named, "rank {rank}: {outcome:?}");
        });
    }
}

#[test]
fn a_rank_that_does_not_arrive_is_named_at_the_deadline() {
    let store = MemoryStore::default();
    run_each(vec![0, 2], |rank| {
        let mut member = member(rank, 4);
        member.timeout = Duration::from_millis(300);
        match join(&store, member) {
            Err(Error::Timeout { waiting_for, .. }) => {
                // A rank that arrived is never named, unless it arrived after the deadline of the
                // other.
                assert!(waiting_for.contains(&1) && waiting_for.contains(&3), "{waiting_for:?}");
                assert!(!waiting_for.contains(&rank), "{waiting_for:?}");
            }
            outcome => panic!("rank {rank}: {outcome:?}"),
        }
    });
    // The two ranks join again, this time together with the missing ones.
    run_each(all(4), |rank| assert_eq!(join(&store, member(rank, 4)).unwrap().len(), 4));
}

#[test]
fn a_late_rank_connects_to_all_others() {
    let store = MemoryStore::default();
    run_each(all(3), |rank| {
        if rank == 2 {
            let claims = ["comm/0000000000000000/0/0/joined/0", "comm/0000000000000000/0/0/joined/1"];
            store.wait(&claims, SOON).unwrap();
        }
        assert_eq!(join(&store, member(rank, 3)).unwrap().len(), 3);
    });
}

/// An endpoint that connects unless the record of a rank is "broken".
struct Fake(usize);

impl Endpoint for Fake {
    type Fabric = ();

    fn record(&self) -> String {
        if self.0 == 1 { "broken".into() } else { "whole".into() }
    }

    fn connect(self, records: &[String], watch: Option<Arc<Watch>>) -> Result<()> {
        assert!(watch.is_some(), "the store detects exits");
        match records.iter().position(|record| record == "broken") {
            None => Ok(()),
            Some(by) => Err(Error::Aborted { by, reason: "broken".into() }),
        }
    }
}

#[test]
fn a_rank_without_an_endpoint_returns_its_error_and_the_others_name_it() {
    let store = MemoryStore::default();
    run_each(all(3), |rank| {
        let endpoint = if rank == 0 { Err(Error::setting("port", "0", "none is free")) } else { Ok(Fake(2)) };
        match connect(&store, member(rank, 3), endpoint).map(drop) {
            Err(Error::Invalid(_)) => assert_eq!(rank, 0),
            Err(Error::Aborted { by: 0, reason }) => assert!(rank > 0 && reason.contains("none is free")),
            outcome => panic!("rank {rank}: {outcome:?}"),
        }
    });
}

#[test]
fn ranks_that_cannot_connect_name_the_culprit_and_not_each_other() {
    let store = MemoryStore::default();
    run_each(all(4), |rank| {
        let outcome = connect(&store, member(rank, 4), Ok(Fake(rank))).map(drop);
        assert!(matches!(outcome, Err(Error::Aborted { by: 1, .. })), "rank {rank}: {outcome:?}");
    });
}

#[test]
fn all_missing_ranks_of_a_large_group_are_named() {
    let store = MemoryStore::default();
    let missing = [5, 63, 64, 129];
    for rank in (1..130).filter(|rank| !missing.contains(rank)) {
        store.set(&format!("comm/{:016x}/0/0/joined/{rank}", 0), b"1").unwrap();
    }
    let mut member = member(0, 130);
    member.timeout = Duration::from_millis(50);
    match join(&store, member) {
        Err(Error::Timeout { waiting_for, .. }) => assert_eq!(waiting_for, missing),
        outcome => panic!("{outcome:?}"),
    }
}

/// Joins a running group: waits for the admission, and takes part in its rendezvous.
fn join_running(store: &dyn Store) -> Result<(usize, Vec<String>)> {
    let place = WaitList::new(store, 0, 0).enter(SOON)?;
    let admission = place.wait(SOON)?;
    let admission = admission.ok_or_else(|| Error::Internal("passed over".into()))?;
    let Membership { rank, size } = admission.membership;
    let mut member = member(rank, size);
    (member.round, member.timeout) = (admission.round, admission.timeout);
    let records = join(store, member)?;
    place.finish();
    Ok((rank, records))
}

#[test]
fn a_group_admits_waiting_processes_in_the_order_of_their_arrival() {
    let store = MemoryStore::default();
    let list = WaitList::new(&store, 0, 0);
    assert!(list.admit(1, usize::MAX, [SOON; 2]).unwrap().is_none());
    std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        for number in 1..=3 {
            waiting.push(scope.spawn(|| join_running(&store).unwrap()));
            store.wait(&[&format!("comm/{:016x}/0/join/waiting/{number}", 0)], SOON).unwrap();
        }
        // Two fit into the group of two, and the third waits for the next round.
        for (size, most, expected) in [(2, 2, vec![1, 2]), (4, 9, vec![3])] {
            let admitted = list.admit(size, most, [SOON; 2]).unwrap().unwrap();
            assert_eq!(admitted.numbers, expected);
            run_each(all(size), |rank| {
                let mut member = member(rank, size + expected.len());
                member.round = admitted.round;
                join(&store, member).unwrap();
            });
        }
        let ranks: Vec<usize> = waiting.into_iter().map(|thread| thread.join().unwrap().0).collect();
        assert_eq!(ranks, [2, 3, 4]);
    });
    assert!(list.admit(5, usize::MAX, [SOON; 2]).unwrap().is_none());
}

#[test]
fn a_process_that_has_left_is_not_admitted_and_one_that_was_passed_over_enters_again() {
    let store = MemoryStore::default();
    let list = WaitList::new(&store, 0, 0);
    drop(list.enter(SOON).unwrap());
    let place = list.enter(SOON).unwrap();
    // The second process is admitted by a leader that dies before it writes so.
    store.add(&format!("comm/{:016x}/0/join/admitted", 0), 2).unwrap();
    assert_eq!(place.wait(SOON).unwrap(), None);
    let place = list.enter(SOON).unwrap();
    let admitted = list.admit(4, usize::MAX, [SOON; 2]).unwrap().unwrap();
    assert_eq!((admitted.numbers.clone(), list.has_left(3).unwrap()), (vec![3], false));
    let admission = place.wait(SOON).unwrap().unwrap();
    assert_eq!(admission.membership, Membership { rank: 4, size: 5 });
    assert_eq!(admission.round, admitted.round);
    // It exits before the rendezvous.
    drop(place);
    assert!(list.has_left(3).unwrap());
}

#[test]
fn a_launcher_sees_which_of_its_processes_were_admitted() {
    let store = MemoryStore::default();
    let list = WaitList::new(&store, 0, 0);
    let admissions = |ids: &[u64]| {
        let seen = list.admissions(ids.iter().copied()).unwrap();
        (seen.admitted, seen.has_others)
    };
    assert_eq!(admissions(&[1, 2]), (vec![], false));
    let first = list.with_id(Some(1)).enter(SOON).unwrap();
    assert_eq!(admissions(&[1, 2]), (vec![], false));
    list.admit(1, usize::MAX, [SOON; 2]).unwrap().unwrap();
    assert_eq!(admissions(&[1, 2]), (vec![1], false));
    // It waits again, as a process whose rendezvous has failed does.
    let again = list.with_id(Some(1)).enter(SOON).unwrap();
    assert_eq!(admissions(&[1, 2]), (vec![], false));
    list.admit(1, usize::MAX, [SOON; 2]).unwrap().unwrap();
    drop((first, again));
    // A process that the launcher does not know waits, too.
    let _other = list.enter(SOON).unwrap();
    assert_eq!(admissions(&[1, 2]), (vec![1], true));
}

#[test]
fn an_admission_to_an_absurdly_large_group_is_refused() {
    let store = MemoryStore::default();
    for (number, (size, is_refused)) in (1..).zip([(1 << 16, false), ((1 << 16) + 1, true), (u64::MAX, true)])
    {
        let place = WaitList::new(&store, 0, 0).enter(SOON).unwrap();
        let admission = format!("7 1 {size} 100");
        store.set(&format!("comm/{:016x}/0/join/admission/{number}", 0), admission.as_bytes()).unwrap();
        assert_eq!(place.wait(SOON).is_err(), is_refused, "{size}");
    }
}

#[test]
fn processes_that_wait_for_a_group_that_has_ended_get_an_error() {
    let store = MemoryStore::default();
    let list = WaitList::new(&store, 0, 0);
    let place = list.enter(SOON).unwrap();
    list.close().unwrap();
    let error = place.wait(SOON).unwrap_err();
    assert!(matches!(error, Error::Handshake { refusal: Refusal::GroupEnded, .. }), "{error}");
    let late = list.enter(SOON).unwrap().wait(SOON).unwrap_err();
    assert!(matches!(late, Error::Handshake { refusal: Refusal::GroupEnded, .. }), "{late}");
}

#[test]
fn a_check_that_fails_ends_the_rendezvous_on_every_rank() {
    let store = MemoryStore::default();
    run_each(all(3), |rank| {
        let mut member = member(rank, 4);
        if rank == 1 {
            let lost = || Err(Error::PeerLost { peer: 3, during: During::Idle, loss: Loss::Closed });
            member.check = Some(Arc::new(lost));
        }
        let error = join(&store, member).unwrap_err();
        assert!(matches!(error, Error::PeerLost { peer: 3, .. }), "rank {rank}: {error}");
    });
}

#[test]
fn the_keys_of_a_rendezvous_can_be_removed() {
    let store = MemoryStore::default();
    for round in [0, 7] {
        run_each(all(3), |rank| {
            let mut member = member(rank, 3);
            member.round = round;
            join(&store, member).unwrap();
        });
    }
    let all = store.num_keys().unwrap();
    Rendezvous::remove(&store, 0, 0, 3).unwrap();
    assert_eq!(store.num_keys().unwrap(), all / 2);
    Rendezvous::remove(&store, 0, 7, 3).unwrap();
    assert_eq!(store.num_keys().unwrap(), 0);
}
