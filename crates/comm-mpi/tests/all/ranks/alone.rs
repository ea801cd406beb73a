//! Tests that need processes of their own: MPI is initialized once, or the job ends.

use std::time::Duration;

use comm_core::{Comm, Error, ReduceOp};
use comm_mpi::mpi::traits::Communicator as _;
use comm_mpi::mpi::{Threading, initialize_with_threading};
use comm_mpi::{CallMemoryMode, MpiCommunicator, MpiConfig};

use super::{ALONE, run};

/// Returns whether `launch` has started this process for a test.
fn is_for(name: &str) -> bool {
    std::env::var(ALONE).is_ok_and(|alone| alone == name)
}

#[test]
fn the_program_initializes_mpi() {
    if !is_for("the_program_initializes_mpi") {
        return;
    }
    let (universe, _) = initialize_with_threading(Threading::Multiple).unwrap();
    let world = universe.world();
    let (one, two) = (MpiConfig::default(), MpiConfig::default());
    let comm = Comm::new(MpiCommunicator::duplicate_of(&world, one).unwrap());
    let other = Comm::new(MpiCommunicator::duplicate_of(&world, two).unwrap());
    assert_ne!(comm.group().id(), other.group().id());
    assert_eq!((comm.rank() as i32, comm.size() as i32), (world.rank(), world.size()));
    let ids = comm.all_gather_scalar(other.group().id().0).unwrap();
    assert_eq!(ids, vec![ids[0]; comm.size()]);
    assert_eq!(other.all_reduce_scalar(2, ReduceOp::Sum).unwrap(), 2 * comm.size());
    drop(comm);
    // The program finalizes MPI, and `other` outlives it.
    drop(universe);
    assert!(matches!(other.barrier(), Err(Error::BackendUnavailable { .. })));
}

#[test]
fn an_mpi_for_one_thread_is_refused() {
    if !is_for("an_mpi_for_one_thread_is_refused") {
        return;
    }
    let (universe, level) = initialize_with_threading(Threading::Funneled).unwrap();
    let refused = MpiCommunicator::duplicate_of(&universe.world(), MpiConfig::default());
    // An MPI may provide more than was asked for.
    match (level, refused) {
        (Threading::Single | Threading::Funneled, Err(Error::BackendUnavailable { detail, .. })) => {
            assert!(detail.contains("MPI_THREAD_SERIALIZED"), "{detail}");
        }
        (Threading::Serialized | Threading::Multiple, Ok(_)) => {}
        (level, refused) => panic!("{level:?}: {refused:?}"),
    }
}

#[test]
fn threads_take_turns_if_mpi_requires_it() {
    if !is_for("threads_take_turns_if_mpi_requires_it") {
        return;
    }
    let (universe, level) = initialize_with_threading(Threading::Serialized).unwrap();
    assert!(level >= Threading::Serialized, "{level:?}");
    {
        let comm = MpiCommunicator::duplicate_of(&universe.world(), MpiConfig::default()).unwrap();
        let comm = Comm::new(comm);
        let groups: Vec<_> = (0..3).map(|_| comm.duplicate().unwrap()).collect();
        std::thread::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    for round in 0..100 {
                        assert_eq!(
                            group.all_reduce_scalar(round, ReduceOp::Sum).unwrap(),
                            round * group.size()
                        );
                        let mut theirs = [0];
                        let peer = group.size() - 1 - group.rank();
                        group.send_recv(peer, &[round], peer, &mut theirs).unwrap().exactly(1).unwrap();
                        assert_eq!(theirs, [round]);
                    }
                });
            }
        });
        comm.finalize().unwrap();
    }
    drop(universe);
}

#[test]
fn a_timeout_on_borrowed_memory_ends_the_job() {
    if !is_for("a_timeout_on_borrowed_memory_ends_the_job") {
        return;
    }
    let config = MpiConfig::default().compare_calls(false).memory(CallMemoryMode::Borrowed);
    run(2, config, |comm| {
        if comm.rank() == 0 {
            let short = comm.with_timeout(Duration::from_millis(200));
            println!("the call begins");
            let outcome = short.all_reduce_into(&[1.0], &mut [0.0], ReduceOp::Sum);
            println!("the call returned {outcome:?}");
        } else {
            // Until the job ends.
            loop {
                std::thread::park();
            }
        }
    });
}

#[test]
fn processes_exit_although_a_call_has_timed_out() {
    if !is_for("processes_exit_although_a_call_has_timed_out") {
        return;
    }
    run(2, MpiConfig::default().compare_calls(false), |comm| {
        if comm.rank() == 0 {
            let short = comm.with_timeout(Duration::from_millis(200));
            let error = short.all_reduce_into(&[1.0], &mut [0.0], ReduceOp::Sum).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            return;
        }
        while comm.check().is_ok() {
            std::thread::yield_now();
        }
    });
}
