//! Collectives on buffers that other ranks read in place give the same bits as on any other
//! buffers.

#![allow(clippy::unwrap_used)]

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use comm_core::{Blocks, Buffer, Collective, Comm, Fabric, Partition, ReduceOp, Transport, Until};
use comm_ring::{RingCommunicator, RingConfig};
use comm_shm::{SharedMemoryFabric, SharedMemoryTransport};
use comm_sim::{AlteredFabric, AlteredTransport, SharingFabric};

const WORLDS: [usize; 6] = [1, 2, 3, 5, 8, 13];

fn communicator(fabric: impl Fabric + 'static) -> Comm {
    let timeout = Duration::from_secs(60);
    let communicator = RingCommunicator::new(fabric, RingConfig::default(), timeout).unwrap();
    Comm::new(communicator).with_timeout(timeout)
}

/// Returns a value that differs for every rank and element, with sums that round.
fn value(rank: usize, at: usize) -> f32 {
    let mixed = (rank as u64 * 0x9e37 + at as u64 * 0x79b9 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    (mixed >> 40) as f32 / 1000.0
}

/// Returns a buffer for a collective: on the heap, or one that other ranks can read in place.
fn filled(comm: &Comm, len: usize, allocated: bool) -> Memory {
    let values = (0..len).map(|at| value(comm.rank(), at));
    if !allocated {
        return Memory::Heap(values.collect());
    }
    let mut buffer = comm.alloc(len).unwrap();
    buffer.iter_mut().zip(values).for_each(|(element, value)| *element = value);
    Memory::Allocated(buffer)
}

enum Memory {
    Heap(Vec<f32>),
    Allocated(Buffer<f32>),
}

impl std::ops::Deref for Memory {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Heap(vec) => vec,
            Self::Allocated(buffer) => buffer,
        }
    }
}

impl std::ops::DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Heap(vec) => vec,
            Self::Allocated(buffer) => buffer,
        }
    }
}

/// Returns the bits of the results of every collective.
fn everything(comm: &Comm, len: usize, allocated: bool) -> Vec<Vec<u32>> {
    let (n, root) = (comm.size(), comm.size() - 1);
    let own = filled(comm, len, allocated);
    let blocks = filled(comm, len * n, allocated);
    let mut results = Vec::new();
    let mut keep = |memory: &[f32]| results.push(memory.iter().map(|element| element.to_bits()).collect());
    let empty = |len: usize| {
        let mut memory = filled(comm, len, allocated);
        memory.fill(0.0);
        memory
    };
    for op in [ReduceOp::Sum, ReduceOp::Avg] {
        let mut buffer = filled(comm, len, allocated);
        comm.all_reduce(&mut buffer[..], op).unwrap();
        keep(&buffer);
    }
    let mut into = empty(len);
    comm.all_reduce_into(&own[..], &mut into[..], ReduceOp::Sum).unwrap();
    keep(&into);
    let mut buffer = filled(comm, len, allocated);
    comm.reduce(root, &mut buffer[..], ReduceOp::Sum).unwrap();
    keep(&buffer);
    let mut buffer = filled(comm, len, allocated);
    comm.broadcast(root, &mut buffer[..]).unwrap();
    keep(&buffer);
    let mut into = empty(len * n);
    comm.all_gather(&own[..], &mut into[..]).unwrap();
    keep(&into);
    comm.gather(root, &own[..], &mut into[..]).unwrap();
    keep(&into);
    comm.all_to_all(&blocks[..], &mut into[..]).unwrap();
    keep(&into);
    let mut into = empty(len);
    comm.reduce_scatter(&blocks[..], &mut into[..], ReduceOp::Sum).unwrap();
    keep(&into);
    comm.scatter(root, &blocks[..], &mut into[..]).unwrap();
    keep(&into);
    let mut buffer = filled(comm, len, allocated);
    comm.scan(&mut buffer[..], ReduceOp::Sum).unwrap();
    keep(&buffer);
    comm.barrier().unwrap();
    assert!(
        own.iter().enumerate().all(|(at, element)| element.to_bits() == value(comm.rank(), at).to_bits())
    );
    results
}

fn same_bits(zero_copy_bytes: usize, worlds: &[usize], lengths: impl Fn(usize) -> Vec<usize> + Sync) {
    for &n in worlds {
        comm_sim::run_each(crate::common::zero_copy_world(n, 8192, zero_copy_bytes), |fabric| {
            let comm = communicator(fabric);
            for len in lengths(n) {
                let expected = everything(&comm, len, false);
                let found = everything(&comm, len, true);
                assert!(
                    expected == found,
                    "{n} ranks, {len} elements, read in place from {zero_copy_bytes} bytes on"
                );
            }
        });
    }
}

#[test]
fn every_collective_has_the_same_bits_when_everything_is_read_in_place() {
    same_bits(1, &WORLDS, |n| vec![0, 1, n - 1, n, n + 1, 1000]);
}

#[test]
fn every_collective_has_the_same_bits_when_some_buffers_are_read_in_place() {
    same_bits(20_000, &[2, 3, 5, 8], |_| vec![100, 1023, 10_007, 30_011]);
}

#[test]
fn large_buffers_have_the_same_bits() {
    same_bits(64 << 10, &[2, 3], |_| vec![700_001]);
}

/// A rank whose buffers can be read in place stages nothing, and the others stage as always.
#[test]
fn results_have_the_same_bits_whichever_ranks_have_allocated_their_buffers() {
    const LEN: usize = 100_003;
    for n in [2, 3, 5] {
        comm_sim::run_each(crate::common::zero_copy_world(n, 8192, 1), |fabric: SharedMemoryFabric| {
            let (rank, staged) = (fabric.group().rank(), Arc::new(AtomicBool::new(false)));
            let asked = Arc::clone(&staged);
            let share = move |fabric: &SharedMemoryFabric, bytes| {
                asked.store(true, Ordering::Relaxed);
                fabric.shared_buffer(bytes)
            };
            let comm = communicator(SharingFabric { fabric, share });
            // The heap comes last, because staged memory is kept.
            let (all, some) = (everything(&comm, LEN, true), staged.load(Ordering::Relaxed));
            assert!(!some, "rank {rank} of {n} staged what others could read");
            assert!(all == everything(&comm, LEN, rank % 2 == 0), "some of {n}");
            assert!(all == everything(&comm, LEN, false), "none of {n}");
            let comm = comm.with_algorithm("staged");
            let sum = |allocated| {
                let mut buffer = filled(&comm, LEN, allocated);
                comm.all_reduce(&mut buffer[..], ReduceOp::Sum).unwrap();
                buffer.iter().map(|element| element.to_bits()).collect::<Vec<_>>()
            };
            let expected = sum(false);
            assert!(expected == sum(rank % 2 == 0) && expected == sum(true), "sum of {n}");
            assert!(staged.load(Ordering::Relaxed), "rank {rank} of {n} staged nothing");
        });
    }
}

#[test]
fn pieces_too_short_to_be_read_in_place_are_staged_from_allocated_buffers_too() {
    // Pieces of at least 32 KiB are read in place.
    comm_sim::run_each(crate::common::zero_copy_world(3, 8192, 1 << 20), |fabric: SharedMemoryFabric| {
        let staged = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&staged);
        let share = move |fabric: &SharedMemoryFabric, bytes| {
            asked.store(true, Ordering::Relaxed);
            fabric.shared_buffer(bytes)
        };
        let comm = communicator(SharingFabric { fabric, share }).with_algorithm("staged");
        let mut buffer = comm.alloc::<f32>(1 << 20).unwrap();
        let mut is_staged = |bytes: usize| {
            staged.store(false, Ordering::Relaxed);
            comm.all_reduce(&mut buffer[..bytes / 4], ReduceOp::Sum).unwrap();
            staged.load(Ordering::Relaxed)
        };
        assert!(!is_staged(99 << 10), "three pieces of 33 KiB");
        assert!(is_staged(93 << 10), "three pieces of 31 KiB");
    });
}

/// Heap memory that is read in place gives the same bits as memory that is copied through the ring.
#[test]
fn every_collective_has_the_same_bits_when_nothing_is_copied_first() {
    let run = |n, bytes, len| {
        comm_sim::run_each(crate::common::single_copy_world(n, 8192, bytes), |fabric| {
            everything(&communicator(fabric), len, false)
        })
    };
    for n in [2, 3, 5, 8] {
        let large = if n == 2 { 1_100_003 } else { 100_003 };
        for len in [1000, 1025, 30_011, large] {
            assert!(run(n, 0, len) == run(n, usize::MAX, len), "{n} ranks, {len} elements");
        }
    }
}

/// Runs a call on each rank. `observe` is told of each send: how many bytes it was, and whether all
/// that was sent to that rank has been released.
fn observed(
    world: Vec<SharedMemoryFabric>,
    observe: impl Fn(usize, bool) + Clone + Send + Sync + 'static,
    call: impl Fn(&Comm) + Sync,
) {
    let fabrics = world.into_iter().map(|fabric| {
        let observe = observe.clone();
        let open = move |fabric: &SharedMemoryFabric, channel, members: &[usize], until: Until<'_>| {
            let (observe, mut accepted) = (observe.clone(), vec![0; members.len()]);
            let send = move |transport: &mut SharedMemoryTransport, to: usize, bytes: &[IoSlice<'_>]| {
                let sent = transport.try_send(to, bytes)?;
                accepted[to] += sent as u64;
                observe(sent, transport.released(to) >= accepted[to]);
                Ok(sent)
            };
            Ok(AlteredTransport { transport: fabric.open_among(channel, members, until)?, alteration: send })
        };
        AlteredFabric { fabric, open }
    });
    comm_sim::run_each(fabrics.collect(), |fabric| call(&communicator(fabric)));
}

/// Whether anything was sent in a call without a copy, and so was not released immediately.
fn is_shown(n: usize, call: fn(&Comm)) -> bool {
    let shown = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&shown);
    let observe = move |_, is_released: bool| {
        note.fetch_or(!is_released, Ordering::Relaxed);
    };
    observed(crate::common::single_copy_world(n, 1 << 20, 0), observe, call);
    shown.load(Ordering::Relaxed)
}

/// Two ranks choose by the buffers of both in the last call.
#[test]
fn two_ranks_learn_whether_both_have_allocated_buffers() {
    const LEN: usize = 100_001;
    // Which ranks pass an allocated buffer.
    const CALLS: [usize; 12] = [3, 3, 3, 1, 3, 2, 0, 3, 3, 0, 0, 3];
    comm_sim::run_each(crate::common::zero_copy_world(2, 64 << 10, 1), |fabric| {
        let comm = communicator(fabric);
        for allocated in CALLS {
            let mut buffer = filled(&comm, LEN, allocated >> comm.rank() & 1 == 1);
            comm.all_reduce(&mut buffer[..], ReduceOp::Sum).unwrap();
            assert!((0..LEN).all(|at| buffer[at] == value(0, at) + value(1, at)), "{allocated:b}");
            // Short calls, and others, tell nothing.
            comm.all_reduce(&mut filled(&comm, 1000, false)[..], ReduceOp::Sum).unwrap();
            comm.broadcast(0, &mut filled(&comm, LEN, false)[..]).unwrap();
        }
        let calls = comm.flight_record().unwrap().calls.into_iter().map(|call| call.signature);
        let long = calls.filter(|call| call.collective == Collective::AllReduce && call.count == LEN as u64);
        let staged: Vec<bool> = long.map(|call| &*call.algorithm == "staged").collect();
        let expected: Vec<bool> =
            [0].iter().chain(&CALLS[..CALLS.len() - 1]).map(|last| *last == 3).collect();
        assert_eq!(staged, expected);
    });
}

/// Results are written where they are received. What is sent is the contributions, and results for
/// ranks with other memory.
#[test]
fn results_are_put_into_allocated_buffers_and_sent_to_others() {
    const LEN: usize = 150_001;
    for n in [3, 5] {
        let sent_if = |is_allocated: fn(usize) -> bool| {
            let sent = Arc::new(AtomicUsize::new(0));
            let note = Arc::clone(&sent);
            let observe = move |bytes, _| {
                note.fetch_add(bytes, Ordering::Relaxed);
            };
            observed(crate::common::zero_copy_world(n, 8192, 1), observe, |comm: &Comm| {
                let comm = comm.with_algorithm("staged");
                // The other elements are on the first and the last page of the window.
                let mut buffer = filled(&comm, LEN, is_allocated(comm.rank()));
                comm.all_reduce(&mut buffer[3..LEN - 5], ReduceOp::Sum).unwrap();
                let is_right = |at: usize| {
                    buffer[at] == staged_sum_of(n, LEN - 8, at - 3, |rank, at| value(rank, at + 3))
                };
                assert!((3..LEN - 5).all(is_right), "{n} ranks");
                let is_kept = |at: usize| buffer[at] == value(comm.rank(), at);
                assert!((0..3).chain(LEN - 5..LEN).all(is_kept), "{n} ranks");
            });
            sent.load(Ordering::Relaxed) as f64 / ((n - 1) * size_of::<f32>() * (LEN - 8)) as f64
        };
        let (all, some, none) = (sent_if(|_| true), sent_if(|rank| rank > 0), sent_if(|_| false));
        assert!(1.0 < all && all < 1.1, "{all} of {n}");
        assert!(1.1 < some && some < 1.9, "{some} of {n}");
        assert!(2.0 < none && none < 2.1, "{none} of {n}");
    }
}

#[test]
fn the_callers_memory_is_sent_without_a_copy_and_other_memory_is_copied() {
    fn all_to_all(comm: &Comm) {
        let (from, mut into) = (vec![1_u8; comm.size() << 20], vec![0_u8; comm.size() << 20]);
        comm.all_to_all(&from[..], &mut into[..]).unwrap();
    }
    fn reduce(comm: &Comm) {
        comm.reduce(0, &mut vec![1_u8; 1 << 20][..], ReduceOp::Sum).unwrap();
    }
    for n in [2, 3] {
        assert!(is_shown(n, all_to_all) && !is_shown(n, reduce), "{n} ranks");
    }
}

/// Ranks that pass heap memory and ranks that pass memory of the communicator can communicate, and
/// so can ranks with different sizes from which memory is read in place.
#[test]
fn only_some_ranks_may_pass_memory_that_is_read_in_place() {
    for n in [2, 3, 5] {
        comm_sim::run_each(crate::common::zero_copy_world(n, 8192, 1), |fabric| {
            let comm = communicator(fabric);
            let mut mixed = filled(&comm, 20_011, comm.rank().is_multiple_of(2));
            let mut heap = filled(&comm, 20_011, false);
            comm.all_reduce(&mut mixed[..], ReduceOp::Sum).unwrap();
            comm.all_reduce(&mut heap[..], ReduceOp::Sum).unwrap();
            let same = mixed.iter().zip(heap.iter()).all(|(mixed, heap)| mixed.to_bits() == heap.to_bits());
            assert!(same, "{n} ranks");
        });
    }
}

/// A staged collective gives the same bits in pieces that are read in place, in smaller ones that
/// are not, and in more pieces than are staged together, even after a larger call for which more
/// was staged.
#[test]
fn staged_calls_have_the_same_bits() {
    for n in [1, 2, 3, 5, 8] {
        comm_sim::run_each(crate::common::zero_copy_world(n, 8192, 64 << 10), |fabric| {
            let mut config = RingConfig::default();
            (config.segment_bytes, config.segments_per_pass) = (20_000, 2);
            let timeout = Duration::from_secs(60);
            let comm = Comm::new(RingCommunicator::new(fabric, config, timeout).unwrap());
            let (staged, ring) = (comm.with_algorithm("staged"), comm.with_algorithm("ring"));
            for len in [0, 1, 1000, 30_011, 200_003, 1000] {
                let own = filled(&comm, len, false);
                let mut found = filled(&comm, len, false);
                staged.all_reduce(&mut found[..], ReduceOp::Sum).unwrap();
                let is_right = |(at, sum): (usize, &f32)| *sum == staged_sum(n, len, at);
                assert!(found.iter().enumerate().all(is_right), "all_reduce of {len} among {n}");
                let [mut found, mut expected] = [(); 2].map(|()| vec![0.0; len * n]);
                staged.all_gather(&own[..], &mut found[..]).unwrap();
                ring.all_gather(&own[..], &mut expected[..]).unwrap();
                assert!(found == expected, "all_gather of {len} among {n}");
                for root in [0, n - 1] {
                    let mut found = filled(&comm, len, false);
                    staged.broadcast(root, &mut found[..]).unwrap();
                    let is_right = |(at, element): (usize, &f32)| *element == value(root, at);
                    assert!(found.iter().enumerate().all(is_right), "broadcast of {len} among {n}");
                }
            }
        });
    }
}

/// Returns an element of the sum of all ranks: the rank that owns it starts with its own, and adds
/// those of the ranks before it.
fn staged_sum(n: usize, len: usize, at: usize) -> f32 {
    staged_sum_of(n, len, at, value)
}

fn staged_sum_of(n: usize, len: usize, at: usize, value: impl Fn(usize, usize) -> f32) -> f32 {
    let chunks = Partition::even(len, n);
    let owner = (0..n).find(|rank| chunks.bytes(Blocks::one(*rank)).unwrap().contains(&at)).unwrap();
    (1..n).fold(value(owner, at), |sum, distance| sum + value((owner + n - distance) % n, at))
}

/// Buffers may be dropped before or after the communicator, and groups read them in place, too.
#[test]
fn buffers_and_communicators_are_dropped_in_any_order() {
    comm_sim::run_each(crate::common::zero_copy_world(3, 8192, 1), |fabric| {
        let comm = communicator(fabric);
        for round in 0..50 {
            let mut buffer = comm.alloc::<u64>(1000).unwrap();
            assert!(buffer.iter().all(|element| *element == 0));
            buffer.fill(round);
            comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            assert!(buffer.iter().all(|element| *element == 3 * round));
        }
        let other = comm.duplicate().unwrap();
        let mut buffer = comm.alloc::<u64>(1000).unwrap();
        buffer.fill(1);
        other.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        drop((comm, other));
        buffer[999] += 1;
        assert_eq!(buffer[999], 4);
    });
}

/// Runs `body` on the late rank once it has ended on all others, which wait until it has ended
/// there.
fn after_the_others<R>(ended: &Barrier, is_late: bool, body: impl FnOnce() -> R) -> R {
    if is_late {
        ended.wait();
    }
    let result = body();
    if !is_late {
        ended.wait();
    }
    ended.wait();
    result
}

/// A rank whose call timed out writes to its buffer, which the others were to read. They fail, and
/// none takes the new contents for the data of the call.
#[test]
fn a_call_that_timed_out_gives_the_buffer_back() {
    for n in [2, 3, 5] {
        let done = Barrier::new(n);
        let results = comm_sim::run_each(crate::common::zero_copy_world(n, 8192, 1), |fabric| {
            let comm = communicator(fabric);
            let mut buffer = comm.alloc::<u64>(100_000).unwrap();
            buffer.fill(1);
            let short = comm.with_timeout(Duration::from_millis(100));
            after_the_others(&done, comm.rank() == n - 1, || {
                let result = short.all_reduce(&mut buffer, ReduceOp::Sum);
                buffer.fill(1 << 40);
                result
            })
        });
        assert!(results.iter().all(Result::is_err), "{n} ranks: {results:?}");
    }
}

/// The same holds for heap memory that was to be read in place and is returned to the system.
#[test]
fn a_call_that_timed_out_gives_any_memory_back() {
    const LEN: usize = 8 << 20;
    for n in [2, 3] {
        let done = Barrier::new(n);
        let results = comm_sim::run_each(crate::common::single_copy_world(n, 8192, 0), |fabric| {
            let comm = communicator(fabric);
            let (mine, mut all) = (vec![1_u8; LEN], vec![0; LEN * n]);
            let short = comm.with_timeout(Duration::from_millis(100));
            after_the_others(&done, comm.rank() == n - 1, || {
                let result = short.all_gather(&mine[..], &mut all[..]);
                drop(mine);
                result
            })
        });
        assert!(results.iter().all(Result::is_err), "{n} ranks: {results:?}");
    }
}

/// A call in the background takes a buffer of the communicator and returns it.
#[test]
fn buffers_are_passed_to_calls_in_the_background() {
    comm_sim::run_each(crate::common::zero_copy_world(2, 8192, 1), |fabric| {
        let comm = communicator(fabric);
        let mut buffer = comm.alloc::<i32>(50_000).unwrap();
        buffer.fill(2);
        let work = comm.all_reduce_async(buffer, ReduceOp::Sum).unwrap();
        let buffer = work.wait().unwrap();
        assert!(buffer.iter().all(|element| *element == 4));
    });
}

/// More than 4 GiB between two ranks.
#[test]
#[ignore = "takes 10 GiB of memory"]
fn buffers_of_more_than_two_gib_are_read_in_place() {
    comm_sim::run_each(crate::common::zero_copy_world(2, 1 << 20, 1 << 16), |fabric| {
        let comm = communicator(fabric);
        let mut buffer = comm.alloc::<u8>((2 << 30) + 5).unwrap();
        buffer.fill(1 + comm.rank() as u8);
        comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        assert!(buffer.iter().all(|element| *element == 3));
    });
}
