//! A rank that stops anywhere in its calls is named by all others, and no other rank is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::io::IoSlice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use comm_core::{
    ChannelId, ChannelKind, Collective, Comm, Error, Fabric, ReduceOp, Result, Transport, Until,
};
use comm_ring::schedule::Algorithm;
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric, InProcessTransport};
use comm_sim::{AlteredFabric, AlteredTransport};

const TIMEOUT: Duration = Duration::from_secs(2);

/// A rank that never sends is stopped between two calls, after so many of them.
const CALLS: usize = 30;

/// Where a rank stops.
#[derive(Debug, Clone, Copy)]
struct Stop {
    ranks: usize,
    rank: usize,
    /// The number of sends before it stops. 0: it does not make the call.
    after: usize,
}

/// State that the ranks of a world share.
#[derive(Debug, Default)]
struct Shared {
    /// The number of sends left before the rank stops; 0 if there is no limit.
    left: AtomicUsize,
    /// The number of other ranks that have failed.
    failed: AtomicUsize,
}

impl Shared {
    /// Returns when all other ranks have failed.
    fn stop(&self, ranks: usize) {
        while self.failed.load(Ordering::SeqCst) < ranks - 1 {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A channel of collectives on which a rank stops as it is about to send.
fn stopping(
    fabric: &InProcessFabric,
    channel: ChannelId,
    members: &[usize],
    until: Until<'_>,
    shared: &Arc<Shared>,
) -> Result<impl Transport + use<>> {
    let (transport, shared) = (fabric.open_among(channel, members, until)?, Arc::clone(shared));
    let (counts, ranks) = (channel.kind == ChannelKind::Collective, members.len());
    let send = move |transport: &mut InProcessTransport, to: usize, bytes: &[IoSlice<'_>]| {
        let left = &shared.left;
        if counts && left.load(Ordering::SeqCst) > 0 && left.fetch_sub(1, Ordering::SeqCst) == 1 {
            shared.stop(ranks);
        }
        transport.try_send(to, bytes)
    };
    Ok(AlteredTransport { transport, send })
}

fn call(comm: &Comm, collective: Collective) -> Result<()> {
    let (ranks, root) = (comm.size(), comm.size() - 1);
    let (mut one, mut all) = ([1_u64; 20], vec![1_u64; 20 * ranks]);
    match collective {
        Collective::AllReduce => comm.all_reduce(&mut one, ReduceOp::Sum),
        Collective::Reduce => comm.reduce(root, &mut one, ReduceOp::Sum),
        Collective::Broadcast => comm.broadcast(root, &mut one),
        Collective::AllGather => comm.all_gather(&one, &mut all),
        Collective::ReduceScatter => comm.reduce_scatter(&all, &mut one, ReduceOp::Sum),
        Collective::Gather if comm.rank() == root => comm.gather(root, &one, &mut all),
        Collective::Gather => comm.gather(root, &one, &mut [0_u64; 0]),
        Collective::Scatter if comm.rank() == root => comm.scatter(root, &all, &mut one),
        Collective::Scatter => comm.scatter(root, &[0_u64; 0], &mut one),
        Collective::AllToAll => comm.all_to_all(&all.clone(), &mut all),
        Collective::Scan => comm.scan(&mut one, ReduceOp::Sum),
        Collective::Exscan => comm.exscan(&mut one, ReduceOp::Sum),
        _ => comm.barrier(),
    }
}

/// Returns the ranks that each rank but the stopped one names.
fn named(row: &'static Algorithm, stop: Stop) -> Vec<(usize, Result<Vec<usize>, String>)> {
    let mut config = RingConfig::default();
    // Time for the answers on a machine that is busy.
    (config.announce_after, config.diagnosis) = (Duration::from_millis(50), TIMEOUT / 2);
    let network = InProcessConfig::default().capacity(2000);
    let shared: Vec<_> = (0..stop.ranks).map(|_| Arc::new(Shared::default())).collect();
    let all = &shared;
    let results = in_process::run(stop.ranks, &network, |fabric| {
        let rank = fabric.group().rank();
        let ours = Arc::clone(&all[stop.rank]);
        let channel_shared = Arc::clone(&all[rank]);
        let open = move |fabric: &InProcessFabric, channel, members: &[usize], until: Until<'_>| {
            stopping(fabric, channel, members, until, &channel_shared)
        };
        let ring =
            RingCommunicator::new(AlteredFabric { fabric, open }, config.clone(), Duration::from_secs(60));
        let comm = Comm::new(ring.unwrap()).with_timeout(TIMEOUT).with_algorithm(row.name);
        if rank == stop.rank {
            ours.left.store(stop.after, Ordering::SeqCst);
            let calls = if stop.after == 0 { 0 } else { CALLS };
            let _ = (0..calls).try_for_each(|_| call(&comm, row.collective));
            ours.stop(stop.ranks);
            return (rank, Ok(vec![]));
        }
        let error = loop {
            if let Err(error) = call(&comm, row.collective) {
                break error;
            }
        };
        ours.failed.fetch_add(1, Ordering::SeqCst);
        let names = match error.root_cause() {
            Error::Timeout { waiting_for, .. } => Ok(waiting_for.clone()),
            other => Err(other.to_string()),
        };
        (rank, names)
    });
    results.into_iter().filter(|(rank, _)| *rank != stop.rank).collect()
}

#[test]
fn a_stopped_rank_and_no_other_is_named_in_every_algorithm() {
    let collectives = [
        Collective::AllReduce,
        Collective::Reduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::Scan,
        Collective::Exscan,
        Collective::Barrier,
    ];
    let rows = collectives.into_iter().flat_map(Algorithm::for_collective);
    let mut cases = Vec::new();
    for (at, row) in rows.enumerate() {
        for ranks in [2, 3, 5] {
            for rank in 0..ranks {
                cases.push((row, Stop { ranks, rank, after: [0, 1, 2, 5][(at + rank) % 4] }));
            }
        }
    }
    let (cases, wrong) = (Mutex::new(cases), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                while let Some((row, stop)) = { cases.lock().unwrap().pop() } {
                    let named = named(row, stop);
                    if named.iter().any(|(_, names)| names.as_deref() != Ok(&[stop.rank])) {
                        let text = format!("{:?} {} {stop:?}: {named:?}", row.collective, row.name);
                        wrong.lock().unwrap().push(text);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
