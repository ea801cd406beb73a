//! Calls that fail.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use comm_core::{During, Error, Loss, Operator, ReduceOp};
use comm_mpi::MpiConfig;

use crate::ranks::run;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(120);

#[test]
fn a_call_past_its_deadline_fails_and_the_communicator_with_it_on_every_rank() {
    for compares in [true, false] {
        run(2, MpiConfig::default().compare_calls(compares), |comm| {
            // Rank 0 comes only after the others have failed.
            let mut sums = vec![1.0_f64; 5000];
            let error = if comm.rank() == 0 {
                while comm.check().is_ok() {
                    std::thread::yield_now();
                }
                comm.all_reduce(&mut sums, ReduceOp::Sum).unwrap_err()
            } else {
                comm.with_timeout(SHORT).all_reduce(&mut sums, ReduceOp::Sum).unwrap_err()
            };
            match (error.root_cause(), comm.rank()) {
                (Error::Aborted { by, reason }, 0) => {
                    assert!(*by > 0 && reason.contains("timed out"), "{error}")
                }
                (Error::Timeout { waiting_for, during: During::Call { .. }, .. }, _) => {
                    assert!(waiting_for.contains(&0), "{error}");
                }
                // Another rank was faster.
                (Error::Aborted { by, .. }, _) => assert!(*by > 0, "{error}"),
                _ => panic!("{error}"),
            }
            assert!(matches!(comm.barrier(), Err(Error::Poisoned(_))));
            assert!(matches!(comm.finalize(), Err(Error::Poisoned(_))));
        });
    }
}

#[test]
fn an_abort_ends_the_calls_of_all_ranks() {
    run(2, MpiConfig::default(), |comm| {
        if comm.rank() == 0 {
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| comm.recv(0, 7, &mut [0_u8]).unwrap_err());
                while !waiter.is_finished() {
                    comm.abort("enough");
                    std::thread::yield_now();
                }
                assert!(matches!(waiter.join().unwrap().root_cause(), Error::Aborted { by: 0, .. }));
            });
        } else {
            let error = comm.barrier().unwrap_err();
            assert!(matches!(&error, Error::Aborted { by: 0, reason } if reason == "enough"), "{error}");
            let error = comm.send(0, 7, &[1]).unwrap_err();
            assert!(matches!(error.root_cause(), Error::Aborted { by: 0, .. }), "{error}");
        }
    });
}

#[test]
fn a_rank_that_left_is_named() {
    run(2, MpiConfig::default(), |comm| {
        comm.barrier().unwrap();
        let last = comm.size() - 1;
        if comm.rank() == last {
            return;
        }
        let error = comm.recv(last, 7, &mut [0_u8]).unwrap_err();
        let is_lost = matches!(error, Error::PeerLost { peer, loss: Loss::Finished, .. } if peer == last);
        assert!(is_lost && !error.is_fatal(), "{error}");
        let error = comm.barrier().unwrap_err();
        match error {
            Error::PeerLost { peer, loss: Loss::Left { after: 1 }, .. } => assert_eq!(peer, last),
            // Another rank was faster.
            Error::Aborted { by, .. } => assert_ne!(by, last),
            // The other has failed and left before this call.
            Error::Poisoned(_) => {}
            other => panic!("{other}"),
        }
    });
}

#[test]
fn a_monitored_barrier_names_the_ranks_that_are_missing() {
    // The rank whose deadline passes first.
    for hasty in [0, 1] {
        run(2, MpiConfig::default(), |comm| {
            comm.monitored_barrier(LONG).unwrap();
            let (rank, last) = (comm.rank(), comm.size() - 1);
            if rank == last {
                while comm.check().is_ok() {
                    std::thread::yield_now();
                }
                return;
            }
            let start = Instant::now();
            let is_hasty = rank == hasty || last == 1;
            let error = comm.monitored_barrier(if is_hasty { SHORT } else { LONG }).unwrap_err();
            match error {
                // Rank 0 may be too slow to answer a rank whose deadline has passed.
                Error::Timeout { waiting_for, .. } if rank == hasty && rank > 0 => {
                    assert!(waiting_for == [last] || waiting_for == [0], "{waiting_for:?}");
                }
                Error::Timeout { waiting_for, .. } => assert_eq!(waiting_for, [last]),
                Error::Aborted { by, .. } => assert_eq!((by, rank == hasty), (hasty, false)),
                other => panic!("{other}"),
            }
            assert!(start.elapsed() < LONG);
        });
    }
}

static PANICS: AtomicBool = AtomicBool::new(false);

struct Fragile;

impl Operator for Fragile {
    type Element = u64;
    const NAME: &'static str = "fragile";

    fn combine(left: u64, right: u64) -> u64 {
        assert!(!PANICS.load(Ordering::Relaxed), "this operator is broken");
        left + right
    }
}

#[test]
fn an_operator_that_panics_fails_the_call_on_every_rank() {
    run(2, MpiConfig::default(), |comm| {
        let mut sum = [1_u64];
        comm.all_reduce(&mut sum, ReduceOp::of::<Fragile>()).unwrap();
        assert_eq!(sum, [comm.size() as u64]);
        PANICS.store(true, Ordering::Relaxed);
        let error = comm.all_reduce(&mut sum, ReduceOp::of::<Fragile>()).unwrap_err();
        match error {
            Error::Panicked { message } => assert_eq!(message, "this operator is broken"),
            Error::Aborted { reason, .. } => assert!(reason.contains("panicked"), "{reason}"),
            other => panic!("{other}"),
        }
        assert!(matches!(comm.barrier(), Err(Error::Poisoned(_))));
    });
}

#[test]
fn the_deadline_of_a_call_is_kept() {
    run(2, MpiConfig::default(), |comm| {
        if comm.rank() == 0 {
            let start = Instant::now();
            let error = comm.with_timeout(SHORT).barrier().unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }) && start.elapsed() >= SHORT, "{error}");
            return;
        }
        while comm.check().is_ok() {
            std::thread::yield_now();
        }
    });
}
