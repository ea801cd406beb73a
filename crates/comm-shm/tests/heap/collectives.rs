//! Collectives read vectors of the heap in place.

use std::io::IoSlice;
use std::time::Instant;

use comm_core::{Comm, Fabric, ReduceOp, Transport};
use comm_ring::{RingCommunicator, RingConfig};
use comm_shm::{Heap, SharedMemoryFabric};

use crate::common::{SOON, WORLD, world, zero_copy_world};
use crate::process::{fork, join};

const LARGE: usize = Heap::LARGE_BYTES_MIN;

pub(crate) fn communicator(fabric: SharedMemoryFabric) -> Comm {
    Comm::new(RingCommunicator::new(fabric, RingConfig::default(), SOON).unwrap()).with_timeout(SOON)
}

/// Returns a value that differs for every rank and element, with sums that round.
pub(crate) fn value(rank: usize, at: usize) -> f32 {
    let mixed = (rank as u64 * 0x9e37 + at as u64 * 0x79b9 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    (mixed >> 40) as f32 / 1000.0
}

pub(crate) fn filled(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| value(rank, at)).collect()
}

#[test]
fn pieces_of_large_vectors_are_sent_by_reference_and_those_of_small_ones_are_copied() {
    let lens = comm_sim::run_each(world(2, 4096), |fabric| {
        let mut transport = fabric.open(WORLD, Instant::now() + SOON).unwrap();
        let (large, small) = (vec![1_u8; 2 * LARGE], vec![1_u8; LARGE / 2]);
        let is_found = |bytes: &[u8]| transport.is_read_in_place(bytes);
        assert!(is_found(&large) && is_found(&large[1000..LARGE]) && !is_found(&large[..65_535]));
        assert!(!is_found(&small));
        let peer = 1 - transport.group().rank();
        // More than the ring holds, and nobody reads it.
        let sent = transport.try_send(peer, &[IoSlice::new(&large)]).unwrap();
        let released = transport.released(peer);
        let mut received = vec![0; 2 * LARGE];
        let mut done = 0;
        while done < received.len() {
            done += transport.try_recv(peer, &mut received[done..]).unwrap();
        }
        assert!(received == large);
        while transport.released(peer) < sent as u64 {
            std::thread::yield_now();
        }
        (sent, released)
    });
    assert!(lens.iter().all(|(sent, _)| *sent == 2 * LARGE), "{lens:?}");
}

#[test]
fn memory_of_the_heap_is_copied_if_no_memory_is_to_be_read_in_place() {
    comm_sim::run_each(zero_copy_world(2, 4096, usize::MAX), |fabric| {
        let transport = fabric.open(WORLD, Instant::now() + SOON).unwrap();
        assert!(!transport.is_read_in_place(&vec![1_u8; 4 * LARGE]));
    });
}

/// Returns the bits of the results of several collectives on these vectors.
fn results(comm: &Comm, own: &mut [f32], blocks: &[f32], into: &mut [f32]) -> Vec<Vec<u32>> {
    let bits = |memory: &[f32]| memory.iter().map(|element| element.to_bits()).collect::<Vec<_>>();
    let mut results = Vec::new();
    let (len, root) = (own.len(), comm.size() - 1);
    comm.all_gather(&*own, &mut *into).unwrap();
    results.push(bits(into));
    comm.all_to_all(blocks, &mut *into).unwrap();
    results.push(bits(into));
    comm.reduce_scatter(blocks, &mut into[..len], ReduceOp::Sum).unwrap();
    results.push(bits(&into[..len]));
    comm.all_reduce_into(&*own, &mut into[..len], ReduceOp::Sum).unwrap();
    results.push(bits(&into[..len]));
    comm.all_reduce(&mut *own, ReduceOp::Avg).unwrap();
    results.push(bits(own));
    comm.broadcast(root, &mut *own).unwrap();
    results.push(bits(own));
    results
}

#[test]
fn collectives_have_the_same_bits_in_memory_of_the_heap() {
    for n in 2..=8 {
        let outcomes = comm_sim::run_each(world(n, 1 << 16), |fabric| {
            let comm = communicator(fabric);
            let (rank, len) = (comm.rank(), LARGE / 4 + 1003);
            let mut own = filled(rank, len);
            let blocks = filled(rank, len * n);
            let in_place = results(&comm, &mut own, &blocks, &mut vec![0.0; len * n]);
            // At other places of a cache line, which differ between ranks.
            let past = 2 * rank + 1;
            let shifted = |elements: &[f32]| [&vec![0.0; past], elements].concat();
            let (mut own, blocks_after, mut into) =
                (shifted(&filled(rank, len)), shifted(&blocks), vec![0.0; past + len * n]);
            let misaligned = results(&comm, &mut own[past..], &blocks_after[past..], &mut into[past..]);
            // Memory of the communicator's own kind, whose results have been tested.
            let [mut own, mut into] = [len, len * n].map(|len| comm.alloc::<f32>(len).unwrap());
            own.copy_from_slice(&filled(rank, len));
            let allocated = results(&comm, &mut own, &blocks, &mut into);
            (in_place, misaligned, allocated)
        });
        for (in_place, misaligned, allocated) in outcomes {
            assert!(in_place == allocated && misaligned == allocated, "{n} ranks");
        }
    }
}

#[test]
fn some_ranks_may_have_other_memory() {
    for n in [2, 3, 5] {
        comm_sim::run_each(world(n, 1 << 16), |fabric| {
            let comm = communicator(fabric);
            let mut memory = comm.alloc::<f32>(LARGE).unwrap();
            let mut vec = filled(comm.rank(), LARGE);
            memory.copy_from_slice(&vec);
            let (first, second): (&mut [f32], &mut [f32]) =
                if comm.rank().is_multiple_of(2) { (&mut vec, &mut memory) } else { (&mut memory, &mut vec) };
            comm.all_reduce(&mut *first, ReduceOp::Sum).unwrap();
            comm.all_reduce(&mut *second, ReduceOp::Sum).unwrap();
            assert!(first.iter().zip(&*second).all(|(first, second)| first.to_bits() == second.to_bits()));
        });
    }
}

/// More segments than a peer maps at a time, in the life of a communicator. A fork makes segments
/// private, so each vector has one of its own.
#[test]
fn segments_come_and_go() {
    let barrier = std::sync::Barrier::new(2);
    comm_sim::run_each(world(2, 1 << 16), |fabric| {
        let comm = communicator(fabric);
        for round in 0..300 {
            let mut vec = vec![round; LARGE / 4];
            comm.all_reduce(&mut vec[..], ReduceOp::Sum).unwrap();
            assert!(vec.iter().all(|element| *element == 2 * round));
            if barrier.wait().is_leader() {
                join(fork(|| {}));
            }
            barrier.wait();
        }
    });
}
