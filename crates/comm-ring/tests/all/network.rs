//! The executor on a faulty network in virtual time: every seed yields a different order of events,
//! and a deadlock is detected with certainty.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use comm_core::{Armed, Collective, DType, Error, Layout, Partition, ReduceOp, Reduction, Transport};
use comm_ring::__private::{Executor, Job, JobReduction, LoweredStep, Progress, Regions, Stop, lower};
use comm_ring::schedule::{Algorithm, Params, TABLE};
use comm_sim::network::{FaultPlan, Incident, Network, NetworkTransport, Outcome, Turn};

const ELEMENTS: usize = 40;

/// A rank that runs one schedule with nothing but the executor.
struct Rank {
    transport: NetworkTransport,
    executor: Executor,
    steps: std::vec::IntoIter<LoweredStep>,
    output: Vec<u8>,
    input: Vec<u8>,
    scratch: Vec<u8>,
    ended: Option<Result<(), Stop>>,
}

fn sum() -> Reduction {
    Reduction::new(ReduceOp::Sum, DType::U32).unwrap()
}

fn contribution(rank: usize, at: usize) -> u32 {
    (rank as u32 + 1) * 1000 + at as u32
}

impl Rank {
    fn new(transport: NetworkTransport, row: &Algorithm, params: &Params, window: usize) -> Self {
        let ranks = params.ranks;
        let chunks = row.chunks.count(ranks);
        // Gathers and scatters need a chunk of the same length for every rank.
        let partition = Partition::even(ELEMENTS * chunks, chunks).segments(params.segments).element_bytes(4);
        let layout = Layout { gapless: row.traits.equal, ..Layout::uniform(&partition) };
        let data: Vec<u8> =
            (0..ELEMENTS * chunks).flat_map(|at| contribution(params.rank, at).to_ne_bytes()).collect();
        let steps: Vec<LoweredStep> = lower((row.steps)(params), &layout, Some(sum())).collect();
        Self {
            transport,
            executor: Executor::new(ranks, window),
            steps: steps.into_iter(),
            output: if params.in_place { data.clone() } else { vec![0xa5; data.len()] },
            input: data,
            scratch: vec![0; (row.slots)(params) * layout.slot_bytes()],
            ended: None,
        }
    }

    fn turn(&mut self, ranks: usize) -> Turn {
        if self.ended.is_some() {
            return Turn::Done;
        }
        let reduction = JobReduction::new(sum(), ranks);
        let job = Job {
            reduction: Some(&reduction),
            sequence: 1,
            fingerprint: 0xfeed,
            bypasses_caches: false,
            is_output_read: false,
            has_window: false,
            results: 0..0,
            polls: 1,
        };
        let mut buffers =
            Regions { input: &self.input, output: &mut self.output, scratch: &mut self.scratch };
        match self.executor.progress(&mut self.transport, &mut self.steps, &job, &mut buffers) {
            Ok(Progress::Done) => self.ended = Some(Ok(())),
            // Before a rank sleeps, it arms the transport, which may be ready although nothing
            // moved.
            Ok(Progress::Blocked { moved }) => match self.transport.arm(self.executor.interest()) {
                Ok(armed) => return Turn::of(moved || armed == Armed::Ready),
                Err(error) => self.ended = Some(Err(error.into())),
            },
            Err(stop) => self.ended = Some(Err(stop)),
        }
        Turn::Done
    }

    fn element(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.output[at * 4..][..4].try_into().unwrap())
    }

    /// Checks that the output holds the result of the collective on this rank.
    fn check(&self, row: &Algorithm, params: &Params) {
        let Params { rank, ranks, root, .. } = *params;
        let sum = |at| (0..ranks).map(|rank| contribution(rank, at)).sum::<u32>();
        let elements = self.output.len() / 4;
        for at in 0..elements {
            let owner = at / ELEMENTS;
            let expected = match row.collective {
                Collective::AllReduce => sum(at),
                Collective::Reduce if rank == root => sum(at),
                Collective::ReduceScatter if owner == rank => sum(at),
                Collective::Scan => (0..=rank).map(|rank| contribution(rank, at)).sum(),
                // Rank 0's output, which holds its contribution as on all ranks, is not changed.
                Collective::Exscan => (0..rank.max(1)).map(|rank| contribution(rank, at)).sum(),
                Collective::Broadcast => contribution(root, at),
                Collective::AllGather => contribution(owner, at),
                Collective::Gather if rank == root => contribution(owner, at),
                Collective::Scatter if owner == rank && rank != root => contribution(root, at),
                Collective::AllToAll if owner % ranks == rank => contribution(owner / ranks, at),
                _ => continue,
            };
            assert_eq!(self.element(at), expected, "{} {} at {at} of {params:?}", row.collective, row.name);
        }
    }
}

/// Runs a row on a network. Returns the outcome and the ranks.
fn run(
    row: &Algorithm,
    (ranks, in_place): (usize, bool),
    window: usize,
    (seed, plan): (u64, &FaultPlan),
) -> (Outcome, Vec<(Params, Rank)>) {
    let segments = if row.traits.segmented { 3 } else { 1 };
    let root = ranks - 1;
    let (mut network, transports) = Network::new(ranks, seed, plan).unwrap();
    let mut world: Vec<(Params, Rank)> = transports
        .into_iter()
        .enumerate()
        .map(|(rank, transport)| {
            let params =
                Params::new(ranks).rank(rank).root(root).segments(segments).pass(2).ranks_per_host(2);
            let params = params.in_place(in_place).exposed(rank % 3 == 1);
            (params, Rank::new(transport, row, &params, window))
        })
        .collect();
    let outcome = network.drive(ranks, |rank| world[rank].1.turn(ranks));
    (outcome, world)
}

#[test]
fn every_schedule_completes_on_a_rough_network() {
    for row in TABLE {
        for ranks in [1, 2, 3, 4, 5, 8] {
            for seed in 0..10 {
                for window in [2, 5, 32] {
                    let (outcome, world) = run(row, (ranks, true), window, (seed, &FaultPlan::rough()));
                    assert_eq!(outcome, Outcome::Done, "{} {} seed {seed}", row.collective, row.name);
                    for (params, rank) in &world {
                        assert!(matches!(rank.ended, Some(Ok(()))), "{params:?}: {:?}", rank.ended);
                        rank.check(row, params);
                    }
                }
            }
        }
    }
}

#[test]
fn reductions_read_an_input_apart_from_the_output_in_pieces_of_any_length() {
    let reduces = |row: &&Algorithm| matches!(row.collective, Collective::Reduce | Collective::ReduceScatter);
    for row in TABLE.iter().filter(reduces) {
        for (ranks, seed) in
            [1, 2, 3, 5, 8].into_iter().flat_map(|ranks| (0..20).map(move |seed| (ranks, seed)))
        {
            let (outcome, world) = run(row, (ranks, false), 5, (seed, &FaultPlan::rough()));
            assert_eq!(outcome, Outcome::Done, "{} {} seed {seed}", row.collective, row.name);
            for (params, rank) in &world {
                rank.check(row, params);
            }
        }
    }
}

#[test]
fn a_death_at_any_time_yields_right_results_or_the_name_of_the_dead() {
    for row in TABLE {
        for seed in 0..60 {
            let dead = seed as usize % 5;
            let after = Duration::from_micros(100 + 400 * seed);
            let plan = FaultPlan::rough().and(after, Incident::Death { rank: dead });
            let (_, world) = run(row, (5, true), 32, (seed, &plan));
            for (params, rank) in world.iter().filter(|(params, _)| params.rank != dead) {
                match &rank.ended {
                    Some(Ok(())) => rank.check(row, params),
                    Some(Err(Stop::Failed(Error::PeerLost { peer, .. }))) => assert_eq!(*peer, dead),
                    Some(Err(other)) => panic!("{params:?}: {other:?}"),
                    // It waits for a rank that waits for the dead one, which the control channel
                    // would report.
                    None => {}
                }
            }
        }
    }
}
