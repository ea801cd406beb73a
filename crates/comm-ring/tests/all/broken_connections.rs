//! A connection that breaks at its receiver, in virtual time: every error names one of its two
//! ends, also on ranks that learn of it only by reports of reports.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use comm_core::{Comm, Error, ReduceOp, Result};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, Incident, NetworkFabric};

const TIMEOUT: Duration = Duration::from_secs(5);
/// The ends of the connection that breaks.
const ENDS: [usize; 2] = [0, 5];

fn work(fabric: NetworkFabric) -> Result<()> {
    let comm = Comm::new(RingCommunicator::new(fabric, RingConfig::default(), TIMEOUT)?);
    for call in 0..20 {
        let mut sum = [call; 97];
        comm.with_timeout(TIMEOUT).all_reduce(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [6 * call; 97]);
    }
    comm.finalize()
}

/// Returns the rank that an error names.
fn named(error: &Error) -> Option<usize> {
    match error.root_cause() {
        Error::PeerLost { peer, .. } => Some(*peer),
        Error::Aborted { by, .. } => Some(*by),
        _ => None,
    }
}

#[test]
fn ranks_that_learn_of_a_broken_connection_by_reports_name_one_of_its_ends() {
    let mut failed = 0;
    for seed in 0..300 {
        let plan = FaultPlan::rough().capacity(4096);
        let time = Duration::from_micros(1000 + 97 * seed);
        let plan = plan.and(time, Incident::Corruption { from: ENDS[0], to: ENDS[1] });
        let errors = network::run(6, seed, &plan, |fabric, _| work(fabric).err());
        for rank in (0..6).filter(|rank| !ENDS.contains(rank)) {
            let Some(error) = &errors[rank] else { continue };
            failed += 1;
            let is_named = named(error).is_some_and(|rank| ENDS.contains(&rank));
            assert!(is_named, "seed {seed}: rank {rank}: {error}");
        }
    }
    assert!(failed > 500, "only {failed} errors");
}
