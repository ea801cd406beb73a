//! Benchmarks of the executor without sockets or waiting, with two ranks that take turns on one
//! thread; and of a call on a communicator of one rank, which moves no data.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a macro makes what is public here")]
#![allow(clippy::expect_used, clippy::panic, reason = "a benchmark panics on errors")]

use std::sync::Arc;
use std::time::Duration;

use comm_core::{
    ChannelId, ChannelKind, Collective, Comm, DType, Fabric, GroupId, Layout, Partition, ReduceOp, Reduction,
    Transport,
};
use comm_ring::__private::{Executor, Job, JobReduction, LoweredStep, Progress, Regions, lower};
use comm_ring::schedule::{Algorithm, Params, TABLE};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const RANKS: usize = 2;
const CHANNEL: ChannelId = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };
const START: Duration = Duration::from_secs(60);
/// Large enough for any message of these benchmarks.
const CAPACITY: usize = 4 << 20;

/// The state of one rank, except for its transport.
struct Rank {
    steps: Arc<[LoweredStep]>,
    executor: Executor,
    data: Vec<u8>,
    scratch: Vec<u8>,
}

impl Rank {
    fn new(row: &Algorithm, rank: usize, bytes: usize) -> Self {
        let params = Params::new(RANKS).rank(rank).ranks_per_host(RANKS);
        let partition = Partition::even(bytes / 4, row.blocks(&params)).element_bytes(4);
        let layout = Layout { gapless: row.traits.equal, ..Layout::uniform(&partition) };
        let scratch = vec![0; (row.slots)(&params) * layout.slot_bytes()];
        let steps = lower((row.steps)(&params), &layout, reduction()).collect();
        Self { steps, executor: Executor::new(RANKS, 32), data: vec![0; bytes], scratch }
    }
}

fn reduction() -> Option<Reduction> {
    Reduction::new(ReduceOp::Sum, DType::F32).ok()
}

/// Runs a call on both ranks, step by step in turns.
fn call(ranks: &mut [Rank], transports: &mut [impl Transport], sequence: u64) {
    let programs: Vec<_> = ranks.iter().map(|rank| Arc::clone(&rank.steps)).collect();
    let mut steps: Vec<_> = programs.iter().map(|steps| steps.iter().cloned()).collect();
    let mut done = [false; RANKS];
    while done.contains(&false) {
        for (at, rank) in ranks.iter_mut().enumerate() {
            if done[at] {
                continue;
            }
            let Rank { executor, data, scratch, .. } = rank;
            let reduction = reduction().map(|reduction| JobReduction::new(reduction, RANKS));
            let job = Job {
                reduction: reduction.as_ref(),
                sequence,
                fingerprint: 0xfeed,
                bypasses_caches: false,
                is_output_read: false,
                has_window: false,
                results: 0..0,
                polls: 1,
            };
            let mut buffers = Regions { input: &[], output: data, scratch };
            match executor.progress(&mut transports[at], &mut steps[at], &job, &mut buffers) {
                Ok(progress) => done[at] = progress == Progress::Done,
                Err(stop) => panic!("{stop:?}"),
            }
        }
    }
}

fn all_reduce(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("executor/all_reduce of 2 ranks");
    for name in ["ring", "recursive_doubling"] {
        let row = TABLE.iter().find(|row| row.collective == Collective::AllReduce && row.name == name);
        let row = row.expect("an algorithm of this name");
        for bytes in [8, 4 << 10, 1 << 20] {
            let network = InProcessConfig::default().capacity(CAPACITY);
            let mut transports = in_process::run(RANKS, &network, |fabric| {
                fabric.open(CHANNEL, fabric.now() + START).expect("a channel")
            });
            let mut ranks: Vec<Rank> = (0..RANKS).map(|rank| Rank::new(row, rank, bytes)).collect();
            let mut sequence = 0;
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter(|| {
                    sequence += 1;
                    call(&mut ranks, &mut transports, sequence);
                });
            });
        }
    }
    group.finish();
}

fn one_rank(criterion: &mut Criterion) {
    let fabric = InProcessFabric::create(1).pop().expect("channels");
    let communicator = RingCommunicator::new(fabric, RingConfig::default(), START).expect("a communicator");
    let comm = Comm::new(communicator);
    let mut group = criterion.benchmark_group("call of 1 rank");
    group.bench_function("barrier", |bencher| bencher.iter(|| comm.barrier()));
    let mut buffer = [0.0_f32];
    group
        .bench_function("all_reduce", |bencher| bencher.iter(|| comm.all_reduce(&mut buffer, ReduceOp::Sum)));
    group.finish();
}

criterion_group!(benches, all_reduce, one_rank);
criterion_main!(benches);
