//! The transport in virtual time, over simulated sockets.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use crate::common::{WORLD, config};
use comm_core::{Error, Fabric, Result};
use comm_sim::network::{self, FaultPlan, VirtualClock};
use comm_tcp::TcpFabric;

const PORT: u16 = 700;
const SECOND: Duration = Duration::from_secs(1);

/// Meets the other ranks of a job as a rank of a world of this size. Rank 0 listens on the same
/// port in all jobs.
fn meet(clock: &VirtualClock, job: u64, rank: usize, size: usize) -> Result<TcpFabric> {
    let mut config = config(rank, size);
    (config.member.job, config.member.clock) = (job, network::now);
    config.bind = Some(clock.address());
    config.ports = (rank == 0).then_some(PORT..=PORT);
    let store = clock.store(None);
    let (rendezvous, fabric) = TcpFabric::join(&store, &config)?;
    rendezvous.finish()?;
    Ok(fabric)
}

/// Waits until a channel to all ranks of the world is open.
fn open(fabric: &TcpFabric) -> Result<()> {
    fabric.open(WORLD, network::now() + 10 * SECOND).map(drop)
}

/// The port of a rank that has exited belongs to a rank of another job.
#[test]
fn a_rank_whose_port_another_process_has_got_is_lost() {
    let outcomes = network::run(3, 1, &FaultPlan::calm(), |_, clock| {
        let process = network::rank_at(clock.address()).unwrap();
        if process == 0 {
            drop(meet(&clock, 1, 0, 2).unwrap());
            return open(&meet(&clock, 2, 0, 2).unwrap());
        }
        if process == 1 {
            let fabric = meet(&clock, 1, 1, 2).unwrap();
            clock.sleep(SECOND);
            return open(&fabric);
        }
        let fabric = meet(&clock, 2, 1, 2).unwrap();
        clock.sleep(2 * SECOND);
        open(&fabric)
    });
    let error = outcomes[1].as_ref().unwrap_err();
    assert!(matches!(error, Error::PeerLost { peer: 0, .. }), "{error}");
    assert!(error.to_string().contains("another process listens at 10.0.0.1:700"), "{error}");
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
}
