//! Failures of messages: only the calls that they concern return an error.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use comm_core::{ANY_TAG, Comm, During, Error, Fabric, Loss, ReduceOp, Source, TagMatch};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{FaultPlan, VirtualClock};
use comm_sim::{Release, in_process};

use super::{payload, run};
use crate::common::{virtual_world, virtual_world_on};

#[track_caller]
fn assert_lost<R>(result: Result<R, Error>, rank: usize) -> Loss {
    match result.err().unwrap() {
        Error::PeerLost { peer, loss, .. } if peer == rank => loss,
        other => panic!("expected the loss of rank {rank}, got: {other}"),
    }
}

#[test]
fn a_receive_that_nothing_matched_times_out_without_harm() {
    virtual_world(3, 0, &RingConfig::default(), |comm, clock| {
        let short = comm.with_timeout(Duration::from_millis(100));
        if comm.rank() == 0 {
            let start = clock.elapsed();
            let error = short.recv(2, 5, &mut [0_u8; 4]).unwrap_err();
            assert_eq!(clock.elapsed() - start, Duration::from_millis(100));
            assert!(!error.is_fatal());
            let Error::Timeout { waiting_for, after, during } = &error else { panic!("{error}") };
            assert_eq!((waiting_for.as_slice(), *after), (&[2_usize][..], Duration::from_millis(100)));
            assert_eq!(*during, During::Await { from: Source::Rank(2), tag: TagMatch::Is(5) });
            let error = short.recv(Source::Any, ANY_TAG, &mut [0_u8; 4]).unwrap_err();
            assert!(
                matches!(&error, Error::Timeout { waiting_for, .. } if waiting_for == &[1, 2]),
                "{error}"
            );
            let error = short.probe(1, ANY_TAG).unwrap_err();
            assert!(matches!(&error, Error::Timeout { waiting_for, .. } if waiting_for == &[1]), "{error}");
        }
        comm.barrier().unwrap();
        // The receives are gone, so none of them takes this message.
        let mut buffer = vec![0; 3];
        if comm.rank() == 2 {
            comm.send(0, 5, &payload(2, 5, 3)).unwrap();
        } else if comm.rank() == 0 {
            comm.recv(2, 5, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
            assert_eq!(buffer, payload(2, 5, 3));
        }
    });
}

#[test]
fn a_thread_that_only_waits_times_out_too() {
    run(2, |comm| {
        if comm.rank() == 1 {
            comm.recv(0, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
            comm.send(0, 2, &[1_u8]).unwrap();
            comm.recv(0, 3, &mut [0_u8]).unwrap().exactly(1).unwrap();
            return comm.send(0, 1, &[1_u8]).unwrap();
        }
        thread::scope(|scope| {
            let driver = scope.spawn(|| comm.send_recv((1, 0), &[0_u8], (1, 1), &mut [0_u8]).unwrap());
            // Once this message arrives, the other thread is in its call.
            comm.recv(1, 2, &mut [0_u8]).unwrap().exactly(1).unwrap();
            let short = comm.with_timeout(Duration::from_millis(50));
            let recvs =
                [short.recv(1, 9, &mut [0_u8]).err(), short.recv_async(1, 7, [0_u8]).unwrap().wait().err()];
            for error in recvs.map(Option::unwrap) {
                assert!(
                    matches!(&error, Error::Timeout { waiting_for, .. } if waiting_for == &[1]),
                    "{error}"
                );
            }
            comm.send(1, 3, &[0_u8]).unwrap();
            let _ = driver.join().unwrap();
        });
    });
}

#[test]
fn an_unreceived_send_times_out_and_ends_messages_but_not_collectives() {
    run(3, |comm| {
        if comm.rank() == 0 {
            let short = comm.with_timeout(Duration::from_millis(100));
            let error = short.send(1, 5, &vec![0_u8; 1_000_000]).unwrap_err();
            assert!(error.is_fatal());
            assert!(matches!(&error, Error::Timeout { waiting_for, .. } if waiting_for == &[1]), "{error}");
            assert!(matches!(comm.send(2, 5, &[0_u8]), Err(Error::Poisoned(_))));
            let late = comm.recv_async(2, 5, [0_u8]).unwrap().wait();
            assert!(matches!(late, Err(Error::Poisoned(_))));
        } else {
            let error = comm.recv(2 / comm.rank(), 77, &mut [0_u8]).unwrap_err();
            let Error::Aborted { by: 0, reason } = error.root_cause() else { panic!("{error}") };
            assert!(reason.contains("sending to rank 1 with tag 5"), "{reason}");
        }
        let mut sum = [1_u32];
        comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum, [3]);
    });
}

/// In a large group, a rank that leaves tells only the ranks with which it has exchanged messages
/// that it has ended its own.
#[test]
fn a_rank_that_left_is_not_named_as_dead_by_ranks_with_which_it_exchanged_nothing() {
    for left in 1..6 {
        let plan = FaultPlan::calm().on_demand(true);
        virtual_world_on(&plan, 6, left as u64, &RingConfig::default(), |comm, clock| {
            if comm.rank() == left {
                return;
            }
            clock.sleep(Duration::from_secs(1));
            if comm.rank() > 0 {
                // Passes on the goodbye only when rank 0 needs it.
                clock.sleep(Duration::from_millis(50));
                return drop(comm.finalize());
            }
            let error = comm.send(left, 1, &[1_u8]).unwrap_err();
            let Error::Aborted { by, reason } = error.root_cause() else { panic!("{error}") };
            assert_eq!((*by, reason.contains("it closed its communicator")), (left, true), "{reason}");
        });
    }
}

#[test]
fn messages_of_a_rank_that_left_can_be_received() {
    for seed in 0..20 {
        let plan = if seed % 2 == 0 { FaultPlan::calm() } else { FaultPlan::rough() };
        virtual_world_on(&plan, 3, seed, &super::tight(), |comm, _| {
            if comm.rank() == 1 {
                return comm.send(0, 1, &payload(1, 1, 20)).unwrap();
            }
            if comm.rank() == 0 {
                let mut buffer = vec![0; 20];
                let _ = comm.probe(1, 1).unwrap();
                // The rank is gone, but its message is still there.
                assert!(matches!(assert_lost(comm.recv(1, 2, &mut buffer), 1), Loss::Finished));
                comm.recv(1, 1, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
                assert_eq!(buffer, payload(1, 1, 20));
                assert!(matches!(assert_lost(comm.recv(1, 1, &mut buffer), 1), Loss::Finished));
                assert_lost(comm.send(1, 1, &buffer), 1);
                assert_lost(comm.probe(1, ANY_TAG), 1);
                // A receive from any source still matches another rank.
                comm.send(2, 3, &[1_u8]).unwrap();
                assert_eq!(comm.recv(Source::Any, 4, &mut [0_u8]).unwrap().source, 2);
                // Once rank 2 has left too, there is no sender.
                let no_sender = comm.recv(Source::Any, 4, &mut [0_u8]);
                assert!(
                    matches!(no_sender, Err(Error::PeerLost { loss: Loss::Finished, .. })),
                    "{no_sender:?}"
                );
            } else {
                comm.recv(0, 3, &mut [0_u8]).unwrap().exactly(1).unwrap();
                comm.send(0, 4, &[1_u8]).unwrap();
            }
        });
    }
}

#[test]
fn a_death_wakes_a_rank_that_sleeps() {
    const DIES: Duration = Duration::from_secs(1);
    virtual_world(2, 0, &RingConfig::default(), |comm, clock| {
        if comm.rank() == 1 {
            clock.sleep(DIES);
            return clock.die();
        }
        assert_lost(comm.recv(1, 1, &mut [0_u8]), 1);
        assert!(clock.elapsed() < DIES + Duration::from_millis(1), "{:?}", clock.elapsed());
    });
}

/// Runs three ranks. Rank 2 dies without a goodbye once the others have reached `dies`.
fn with_a_death(others: impl Fn(&Comm, &(dyn Fn() + Sync)) + Sync) {
    let together = Barrier::new(3);
    in_process::run(3, &in_process::InProcessConfig::default(), |fabric| {
        let timeout = Duration::from_secs(20);
        if fabric.group().rank() < 2 {
            let communicator = RingCommunicator::new(fabric, super::tight(), timeout).unwrap();
            others(&Comm::new(communicator).with_timeout(timeout), &|| {
                together.wait();
            });
        } else {
            // The channels of a rank that never sends a goodbye.
            let channels: Vec<_> = super::hostile::channels(&fabric);
            together.wait();
            drop(channels);
        }
    });
}

#[test]
fn a_death_fails_the_calls_that_need_the_dead_and_no_others() {
    with_a_death(|comm, dies| {
        let other = 1 - comm.rank();
        let from_dead = comm.recv_async(2, 1, vec![0_u8; 3]).unwrap();
        let from_any = comm.recv_async(Source::Any, 1, vec![0_u8; 3]).unwrap();
        let to_dead = comm.send_async(2, 1, vec![0_u8; 5000]).unwrap();
        let from_other = comm.recv_async(other, 2, vec![0_u8; 3000]).unwrap();
        dies();
        assert!(matches!(assert_lost(from_dead.wait(), 2), Loss::Closed));
        assert_lost(from_any.wait(), 2);
        assert_lost(to_dead.wait(), 2);
        assert_lost(comm.recv(2, 1, &mut [0_u8]), 2);
        assert_lost(comm.recv(Source::Any, 1, &mut [0_u8]), 2);
        assert_lost(comm.send_recv((2, 1), &vec![0_u8; 900], (other, 3), &mut [0_u8]), 2);
        assert_lost(comm.send_recv((other, 9), &vec![0_u8; 900], (2, 3), &mut [0_u8]), 2);
        comm.send(other, 2, &vec![8_u8; 3000]).unwrap();
        assert_eq!(from_other.wait().unwrap().0, vec![8; 3000]);
        // The message of the failed exchange arrives nevertheless.
        let mut buffer = vec![1_u8; 900];
        comm.recv(other, 9, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
        assert_eq!(buffer, vec![0; 900]);
        comm.send_recv((other, 4), &[1_u8], (other, 4), &mut buffer[0]).unwrap().exactly(1).unwrap();
    });
}

/// Rank 3 dies. Rank 2 needs it, fails and leaves; rank 1 needs rank 2, and rank 0 needs rank 1.
#[test]
fn every_rank_names_the_killed_rank_and_no_other() {
    for in_collective in [false, true] {
        let connected = Barrier::new(4);
        let errors = in_process::run(4, &in_process::InProcessConfig::default(), |fabric| {
            let rank = fabric.group().rank();
            if rank == 3 {
                let channels: Vec<_> = super::hostile::channels(&fabric);
                connected.wait();
                drop(channels);
                return None;
            }
            let timeout = Duration::from_secs(20);
            let communicator = RingCommunicator::new(fabric, super::tight(), timeout).unwrap();
            let comm = Comm::new(communicator).with_timeout(timeout);
            connected.wait();
            if rank == 2 && in_collective {
                return comm.barrier().err();
            }
            comm.recv(rank + 1, 1, &mut [0_u8]).err()
        });
        for (rank, error) in errors.into_iter().enumerate().take(3) {
            let loss = assert_lost(Err::<(), _>(error.unwrap()), 3);
            assert!(
                rank == 2 || matches!(loss, Loss::Reported { by, .. } if by == rank + 1),
                "{rank}: {loss}"
            );
        }
    }
}

#[test]
fn an_abort_ends_messages_on_every_rank() {
    let errors = run(4, |comm| {
        let waits = comm.recv_async(comm.rank(), 8, [0_u8]).unwrap();
        let error = thread::scope(|scope| {
            if comm.rank() == 1 {
                scope.spawn(|| comm.abort("the user pressed a key"));
            }
            comm.recv((comm.rank() + 1) % 4, 1, &mut [0_u8]).unwrap_err()
        });
        assert!(waits.wait().is_err());
        assert!(matches!(comm.send(0, 1, &[0_u8]), Err(Error::Poisoned(_))));
        assert!(matches!(comm.try_probe(0, 1), Err(Error::Poisoned(_))));
        error
    });
    for error in errors {
        match error.root_cause() {
            Error::Aborted { by: 1, reason } => assert!(reason.contains("pressed a key")),
            other => panic!("expected an abort, got: {other}"),
        }
    }
}

/// The networks on which a report and the end of a stream arrive in any order.
fn plan(seed: u64) -> FaultPlan {
    if seed.is_multiple_of(2) { FaultPlan::calm() } else { FaultPlan::rough() }
}

/// Waits until all ranks are connected, and the bytes of that have left every rank.
fn connect(comm: &Comm, clock: &VirtualClock) {
    comm.barrier().unwrap();
    clock.sleep(Duration::from_secs(1));
}

#[test]
fn a_death_in_a_ring_of_messages_is_named_by_every_rank() {
    for seed in 0..40 {
        virtual_world_on(&plan(seed), 5, seed, &super::tight(), |comm, clock| {
            let (rank, size) = (comm.rank(), comm.size());
            connect(&comm, clock);
            for round in 0.. {
                if (rank, round) == (3, seed % 7) {
                    return clock.die();
                }
                // Eager messages and long ones.
                let len = if (round + seed).is_multiple_of(3) { 10 } else { 1000 };
                let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
                let mut buffer = vec![0; len];
                let message = payload(rank, round, len);
                match comm.send_recv((next, round), &message, (previous, round), &mut buffer) {
                    Ok(_) => assert_eq!(buffer, payload(previous, round, len)),
                    Err(Error::PeerLost { peer: 3, .. }) => return,
                    Err(other) => panic!("rank {rank}, seed {seed}, round {round}: {other}"),
                }
            }
        });
    }
}

/// Rank 3 dies. Rank 2 waits for a message from it, fails and leaves; the others wait for both.
#[test]
fn a_death_that_a_message_shows_is_named_by_ranks_in_a_collective() {
    for seed in 0..40 {
        virtual_world_on(&plan(seed), 4, seed, &super::tight(), |comm, clock| {
            connect(&comm, clock);
            match comm.rank() {
                3 => {
                    clock.sleep(Duration::from_millis(seed));
                    clock.die();
                }
                2 => drop(assert_lost(comm.recv(3, 1, &mut [0_u8]), 3)),
                rank => match comm.barrier() {
                    Err(Error::PeerLost { peer: 3, .. }) => {}
                    other => panic!("rank {rank}, seed {seed}: {other:?}"),
                },
            }
        });
    }
}

/// The frame that the rank was sending when it failed stays incomplete, so no report can follow it.
#[test]
fn a_rank_that_fails_in_the_middle_of_a_message_is_not_taken_for_dead() {
    let plan = FaultPlan::calm().capacity(512);
    virtual_world_on(&plan, 3, 0, &RingConfig::default(), |comm, clock| {
        let (mut first, mut second) = ([0_u8; 400], [0_u8; 400]);
        match comm.rank() {
            0 => {
                let short = comm.with_timeout(Duration::from_millis(100));
                short.send(1, 1, &first).unwrap();
                assert!(matches!(short.send(1, 2, &second), Err(Error::Timeout { .. })));
                assert_lost(comm.barrier(), 2);
                clock.sleep(Duration::from_secs(1));
            }
            1 => {
                clock.sleep(Duration::from_millis(500));
                comm.recv(0, 1, &mut first).unwrap().exactly(400).unwrap();
                // Rank 2 is the one that died.
                assert_lost(comm.recv(0, 2, &mut second), 2);
                let work = comm.recv_async(0, 2, second).unwrap();
                while !work.is_done() {
                    clock.sleep(Duration::from_millis(1));
                }
                assert_lost(work.wait(), 2);
            }
            _ => clock.die(),
        }
    });
}

/// The message reads the report of rank 0, which the next call must not miss.
#[test]
fn a_collective_fails_at_once_if_a_message_before_it_has_found_the_cause() {
    let plan = FaultPlan::calm().capacity(512);
    virtual_world_on(&plan, 2, 0, &RingConfig::default(), |comm, clock| {
        let (mut first, mut second) = ([0_u8; 400], [0_u8; 400]);
        if comm.rank() == 0 {
            let short = comm.with_timeout(Duration::from_millis(100));
            short.send(1, 1, &first).unwrap();
            assert!(matches!(short.send(1, 2, &second), Err(Error::Timeout { .. })));
            assert!(matches!(short.broadcast(1, &mut [0_u8]), Err(Error::Timeout { .. })));
            return clock.sleep(Duration::from_secs(60));
        }
        clock.sleep(Duration::from_millis(500));
        comm.recv(0, 1, &mut first).unwrap().exactly(400).unwrap();
        assert!(matches!(comm.recv(0, 2, &mut second), Err(Error::Timeout { .. })));
        let start = clock.elapsed();
        // Rank 0 waits in the first call, and does not make the second one.
        let outcome = comm.broadcast(1, &mut [0_u8]).and_then(|()| comm.broadcast(0, &mut [0_u8]));
        assert!(matches!(outcome, Err(Error::Timeout { .. })));
        assert!(clock.elapsed() - start < Duration::from_secs(1));
    });
}

/// Rank 1 reports to rank 2 that it has lost rank 0, whose messages have ended.
#[test]
fn ranks_whose_messages_end_in_the_middle_of_one_are_not_taken_for_dead() {
    for release in [Release::OnAccept, Release::OnConsume] {
        let plan = FaultPlan::calm().capacity(512).release(release);
        virtual_world_on(&plan, 3, 0, &RingConfig::default(), |comm, clock| {
            let (rank, mut message) = (comm.rank(), [0_u8; 1000]);
            clock.sleep(Duration::from_millis(500) * rank as u32);
            if rank > 0 {
                let error = comm.recv(rank - 1, 1, &mut message).unwrap_err();
                assert!(matches!(error, Error::Aborted { by, .. } if by == rank - 1), "rank {rank}: {error}");
            }
            if rank < 2 {
                let short = comm.with_timeout(Duration::from_millis(100));
                assert!(short.send(rank + 1, 1, &message).is_err());
            }
            comm.barrier().unwrap();
        });
    }
}

/// Rank 1 fails in a collective because rank 2 is late, and leaves.
#[test]
fn a_rank_that_leaves_after_an_error_is_named_with_the_cause() {
    virtual_world(3, 0, &RingConfig::default(), |comm, clock| {
        connect(&comm, clock);
        let error = match comm.rank() {
            0 => comm.recv(1, 1, &mut [0_u8]).unwrap_err(),
            1 => comm.with_timeout(Duration::from_millis(100)).broadcast(2, &mut [0_u8]).unwrap_err(),
            _ => return clock.sleep(Duration::from_secs(60)),
        };
        let Error::Timeout { waiting_for, .. } = &error else { panic!("{error}") };
        assert!(waiting_for.contains(&2), "{error}");
    });
}
