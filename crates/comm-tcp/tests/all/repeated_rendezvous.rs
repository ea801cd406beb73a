//! Repeated rendezvous in one store, and ranks with different settings.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::thread;
use std::time::Duration;

use crate::common::{config, rendezvous, store};
use comm_core::{Error, Refusal, Result, Store};
use comm_tcp::{FileStore, Secret, TcpFabric};

/// Runs one rendezvous after another, each rank as fast as it can.
fn meet_again(store: &dyn Store, ranks: usize, times: usize) {
    let rank = |rank: usize| {
        for time in 0..times {
            let fabric = TcpFabric::rendezvous(store, &config(rank, ranks));
            assert!(fabric.is_ok(), "rank {rank}, time {time}: {fabric:?}");
        }
    };
    thread::scope(|scope| {
        let rank = &rank;
        (0..ranks).for_each(|at| drop(scope.spawn(move || rank(at))));
    });
}

#[test]
fn ranks_meet_any_number_of_times_under_one_name() {
    for ranks in [2, 3, 5, 8] {
        let (_server, store) = store();
        meet_again(&store, ranks, 200 / ranks);
    }
    let folder = tempfile::tempdir().unwrap();
    meet_again(&FileStore::open(folder.path()).unwrap(), 3, 10);
}

/// A process claims its rank and exits, in a store without last wills; then all ranks restart, that
/// one first or last.
#[test]
fn a_restarted_job_ignores_the_claims_of_exited_processes() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path()).unwrap();
    for first in 0..3 {
        for dead in 0..3 {
            // The keys that the exited process had written.
            let key = format!("comm/{:016x}/0/attempt", 0);
            let number = String::from_utf8(store.compare_set(&key, b"", b"0").unwrap()).unwrap();
            store.set(&format!("comm/{:016x}/0/{number}/joined/{dead}", 0), b"0000000000000bad").unwrap();
            store.add(&format!("comm/{:016x}/0/{number}/joined/count", 0), 1).unwrap();
            thread::scope(|scope| {
                let store = &store;
                for at in 0..3 {
                    scope.spawn(move || {
                        thread::sleep(Duration::from_millis(if at == first { 0 } else { 20 }));
                        TcpFabric::rendezvous(store, &config(at, 3)).unwrap();
                    });
                }
            });
        }
    }
}

fn refusals(outcomes: Vec<Result<TcpFabric>>) -> Vec<(String, String, String, usize)> {
    let refusal = |outcome: Result<TcpFabric>| match outcome {
        Err(Error::Handshake { with, refusal: Refusal::Setting { name, ours, theirs, rank } }) => {
            assert_eq!(with, format!("rank {rank}"));
            (name, ours, theirs, rank)
        }
        other => panic!("{other:?}"),
    };
    outcomes.into_iter().map(refusal).collect()
}

#[test]
fn every_rank_gets_an_error_that_names_the_differing_setting() {
    for n in [2, 3, 5] {
        for odd in 0..n {
            let (_server, store) = store();
            let configs = (0..n).map(|rank| {
                let mut config = config(rank, n);
                config.member.settings.add("same", 7);
                config.member.settings.add("color", if rank == odd { "red\n" } else { "blue" });
                config
            });
            let refusals = refusals(rendezvous(configs.collect(), &store));
            for (rank, (name, ours, theirs, other)) in refusals.into_iter().enumerate() {
                assert_eq!(name, "color");
                let expected = if rank == odd { ("red\\n", "blue") } else { ("blue", "red\\n") };
                assert_eq!((&*ours, &*theirs), expected, "rank {rank} of {n}");
                assert_eq!(rank == odd, other != odd, "rank {rank} of {n} names rank {other}");
            }
        }
    }
}

#[test]
fn the_only_rank_with_a_secret_is_named() {
    let (_server, store) = store();
    let configs = (0..3).map(|rank| {
        let mut config = config(rank, 3);
        config.secret = (rank == 2).then(|| Secret::new("sesame").unwrap());
        config
    });
    let refusals = refusals(rendezvous(configs.collect(), &store));
    assert_eq!(refusals[0], ("secret".into(), "none".into(), "given".into(), 2));
    assert_eq!((&*refusals[2].1, &*refusals[2].2), ("given", "none"));
}
