//! Tests of the costs of repeated collectives: no allocations, no page faults, and no processor
//! time while a rank waits.
#![cfg(feature = "shm")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use comm::{Comm, Config, ReduceOp, TransportKind};
use common::world_with;
use rustix::time::{ClockId, clock_gettime};

/// The transport between ranks.
const TRANSPORTS: [TransportKind; 2] = [TransportKind::Tcp, TransportKind::SharedMemory];
/// Lengths of buffers: one element, some, and several segments per rank.
const LENGTHS: [usize; 3] = [1, 5000, 1 << 20];

fn over(transport: TransportKind) -> impl Fn(&mut Config) + Sync {
    move |config| config.transport = transport
}

/// Buffers for every collective.
struct Buffers {
    one: Vec<f32>,
    all: Vec<f32>,
    exchanged: Vec<f32>,
    /// A factor that differs in every call.
    factor: f64,
}

impl Buffers {
    fn new(ranks: usize, len: usize) -> Self {
        let [all, exchanged] = [(); 2].map(|()| vec![1.0; len * ranks]);
        Self { one: vec![1.0; len], all, exchanged, factor: 0.0 }
    }

    fn every_collective(&mut self, comm: &Comm) {
        let Self { one, all, exchanged, factor } = self;
        *factor += 0.125;
        comm.all_reduce(&mut one[..], ReduceOp::PreMulSum(*factor)).unwrap();
        comm.all_reduce(&mut one[..], ReduceOp::Max).unwrap();
        comm.broadcast(0, &mut one[..]).unwrap();
        comm.reduce(1, &mut one[..], ReduceOp::Max).unwrap();
        comm.all_gather(&one[..], &mut all[..]).unwrap();
        comm.reduce_scatter(&all[..], &mut one[..], ReduceOp::Max).unwrap();
        comm.all_to_all(&all[..], &mut exchanged[..]).unwrap();
        comm.gather(0, &one[..], &mut all[..]).unwrap();
        comm.scatter(0, &all[..], &mut one[..]).unwrap();
        comm.scan(&mut one[..], ReduceOp::Max).unwrap();
        comm.barrier().unwrap();
    }
}

#[test]
fn repeated_calls_do_not_allocate() {
    for transport in TRANSPORTS {
        for ranks in [2, 3, 4] {
            let without_announcements = |config: &mut Config| {
                config.transport = transport;
                // After that time a waiting rank sends an announcement, which allocates.
                config.ring.announce_after = Duration::from_secs(3600);
            };
            let counts = world_with(ranks, without_announcements, |comm| {
                LENGTHS.map(|len| {
                    let mut buffers = Buffers::new(ranks, len);
                    (0..3).for_each(|_| buffers.every_collective(&comm));
                    let calls = || (0..5).for_each(|_| buffers.every_collective(&comm));
                    let count = allocation_counter::measure(calls).count_total;
                    // A rank that leaves sends a close message, for which others allocate.
                    comm.barrier().unwrap();
                    count
                })
            });
            assert_eq!(counts, vec![[0; LENGTHS.len()]; ranks], "{transport:?}");
        }
    }
}

/// Returns the number of page faults of this thread.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The name of the thread ends with the last parenthesis.
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[test]
fn repeated_calls_cause_no_page_faults() {
    const CALLS: usize = 20;
    for transport in TRANSPORTS {
        for ranks in [2, 3, 4] {
            let least = world_with(ranks, over(transport), |comm| {
                fill_rings(&comm);
                LENGTHS.iter().rev().map(|&len| least_faults(&comm, len, CALLS)).collect::<Vec<_>>()
            });
            assert_eq!(least, vec![vec![0; LENGTHS.len()]; ranks], "{transport:?}");
        }
    }
}

/// Sends so much through the ring to every rank, and in pieces so small, that all its memory is in
/// use.
fn fill_rings(comm: &Comm) {
    const PIECE_BYTES: usize = 8 << 10;
    let [sent, mut received] = [(); 2].map(|()| vec![1_u8; PIECE_BYTES * comm.size()]);
    for _ in 0..(2 << 20) / PIECE_BYTES {
        comm.all_to_all(&sent, &mut received).unwrap();
    }
}

/// Returns the number of page faults of this rank in `calls` calls of every collective: the minimum
/// of a few attempts, because the kernel may migrate pages at any time. There is no other attempt
/// after one without a fault on any rank.
fn least_faults(comm: &Comm, len: usize, calls: usize) -> u64 {
    const ATTEMPTS: usize = 3;
    let mut buffers = Buffers::new(comm.size(), len);
    (0..5).for_each(|_| buffers.every_collective(comm));
    let mut least = u64::MAX;
    for _ in 0..ATTEMPTS {
        let before = faults();
        (0..calls).for_each(|_| buffers.every_collective(comm));
        least = least.min(faults() - before);
        let mut most = [least];
        comm.all_reduce(&mut most, ReduceOp::Max).unwrap();
        if most == [0] {
            break;
        }
    }
    least
}

/// Returns the processor time of this thread.
fn used() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

#[test]
fn a_rank_that_waits_leaves_the_processor_to_others() {
    const LATE: Duration = Duration::from_millis(400);
    for transport in TRANSPORTS {
        let waiting = world_with(4, over(transport), |comm| {
            let mut number = [comm.rank() as f32];
            for _ in 0..100 {
                comm.all_reduce(&mut number, ReduceOp::Max).unwrap();
            }
            if comm.rank() == 3 {
                std::thread::sleep(LATE);
            }
            let before = used();
            comm.all_reduce(&mut number, ReduceOp::Max).unwrap();
            used() - before
        });
        // The limit of a wait at its start, and a tenth of the rest.
        let limit = Duration::from_millis(10) + LATE / 10;
        assert!(waiting.iter().all(|time| *time < limit), "{transport:?}: {waiting:?}");
    }
}

/// Computes for about 20 ms, and returns the duration.
fn compute() -> Duration {
    let begin = Instant::now();
    let mut hash = 0_u64;
    for at in 0..12_000_000_u64 {
        hash = black_box(hash.rotate_left(5) ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    black_box(hash);
    begin.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "measures times, which other processes disturb"]
fn ranks_that_wait_do_not_slow_down_one_that_computes() {
    let alone = median((0..15).map(|_| compute()).collect());
    for transport in TRANSPORTS {
        let times = world_with(4, over(transport), |comm| {
            let round = || {
                let time = if comm.rank() == 3 { compute() } else { Duration::ZERO };
                comm.barrier().unwrap();
                time
            };
            median((0..15).map(|_| round()).collect())
        });
        let ratio = times[3].as_secs_f64() / alone.as_secs_f64();
        println!("{transport:?}: {ratio:.3} of {alone:?}");
        assert!(ratio < 1.1, "{transport:?}: {ratio}");
    }
}
