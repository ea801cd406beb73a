//! Calls in the background in virtual time: the threads that run them take turns with the ranks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use comm_core::{Comm, Error, Fabric, ReduceOp, Result};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, NetworkFabric, VirtualClock};

const TIMEOUT: Duration = Duration::from_secs(2);

fn connect(fabric: NetworkFabric) -> Result<Comm> {
    Ok(Comm::new(RingCommunicator::new(fabric, RingConfig::default(), TIMEOUT)?).with_timeout(TIMEOUT))
}

/// Makes background calls on one communicator, and blocking calls on another in the meantime.
fn overlap(fabric: NetworkFabric, clock: &VirtualClock) -> Result<()> {
    let comm = connect(fabric)?;
    let other = comm.duplicate()?;
    let (rank, n) = (comm.rank() as u64, comm.size() as u64);
    let sum = n * (n - 1) / 2;
    for length in [1, 3000] {
        let pending = [
            other.all_reduce_async(vec![rank; length], ReduceOp::Sum)?,
            other.all_reduce_async(vec![10 * rank; length], ReduceOp::Sum)?,
        ];
        clock.sleep(Duration::from_millis(rank));
        let mut own = vec![100 * rank; length];
        comm.all_reduce(&mut own, ReduceOp::Sum)?;
        assert_eq!(own, vec![100 * sum; length]);
        for (work, factor) in pending.into_iter().zip([1, 10]) {
            assert_eq!(work.wait()?, vec![factor * sum; length]);
        }
    }
    drop(other);
    comm.finalize()
}

#[test]
fn calls_in_the_background_complete_on_any_network() {
    for plan in [FaultPlan::calm(), FaultPlan::rough()] {
        for (n, seed) in [1, 2, 3, 5].into_iter().flat_map(|n| (0..4).map(move |seed| (n, seed))) {
            let ends = network::run(n, seed, &plan, |fabric, clock| overlap(fabric, &clock));
            assert!(ends.iter().all(Result::is_ok), "{n} ranks, seed {seed}: {ends:?}");
        }
    }
}

#[test]
fn a_rank_that_dies_during_calls_in_the_background_is_named_by_all_others() {
    for operation in (1..400).step_by(3) {
        let errors = network::run(3, operation, &FaultPlan::calm(), |fabric, clock| {
            let rank = fabric.group().rank();
            let own = clock.clone();
            if rank == 1 {
                clock.before_operation(operation, move || own.die());
            }
            let error = overlap(fabric, &clock).err();
            if error.is_some() {
                clock.sleep(2 * TIMEOUT);
            }
            error
        });
        for error in [&errors[0], &errors[2]].into_iter().flatten() {
            let is_named = matches!(error.root_cause(), Error::PeerLost { peer: 1, .. });
            assert!(is_named, "death at operation {operation}: {error}");
        }
        assert_eq!(errors[0].is_some(), errors[2].is_some(), "operation {operation}: {errors:?}");
    }
}

#[test]
fn an_abort_ends_a_call_in_the_background() {
    let errors = network::run(2, 1, &FaultPlan::calm(), |fabric, clock| {
        let comm = connect(fabric).unwrap();
        if comm.rank() == 0 {
            clock.sleep(Duration::from_millis(20));
            return comm.barrier().unwrap_err();
        }
        // The thread that runs the call holds the communicator, and waits for rank 0.
        let work = comm.all_reduce_async(vec![0.0_f32; 10], ReduceOp::Sum).unwrap();
        clock.sleep(Duration::from_millis(5));
        comm.abort("no longer needed");
        work.wait().unwrap_err()
    });
    let is_named = |error: &Error| matches!(error.root_cause(), Error::Aborted { by: 1, .. });
    assert!(errors.iter().all(is_named), "{errors:?}");
}
