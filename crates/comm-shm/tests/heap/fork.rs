//! A fork copies the blocks, and peers keep reading the right bytes.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use comm_core::{ChannelId, Fabric, GroupId, ReduceOp, Transport};
use comm_shm::{Heap, SharedMemoryFabric};

use crate::block::{TestBlock, layout};
use crate::collectives::{communicator, filled};
use crate::common::{SOON, WORLD, world};
use crate::process::{before_forks, fork, is_new_process, join, overwrite};

const LARGE: usize = Heap::LARGE_BYTES_MIN;

#[test]
fn parent_and_child_have_their_own_bytes() {
    let mut vec = vec![1_u8; 5 * LARGE];
    let (from_child, to_parent) = std::io::pipe().unwrap();
    let (from_parent, to_child) = std::io::pipe().unwrap();
    let child = fork(|| {
        assert!(vec.iter().all(|byte| *byte == 1));
        vec.fill(2);
        (&to_parent).write_all(&[1]).unwrap();
        (&from_parent).read_exact(&mut [0]).unwrap();
        assert!(vec.iter().all(|byte| *byte == 2), "the parent wrote to the memory of the child");
        // What it has can be changed and freed, and it can allocate more.
        vec.resize(9 * LARGE, 2);
        drop(std::mem::take(&mut vec));
        let blocks: Vec<_> = (0..9).map(|value| vec![value; 3 * LARGE]).collect();
        assert!(blocks.iter().enumerate().all(|(at, block)| block.iter().all(|value| *value == at)));
    });
    (&from_child).read_exact(&mut [0]).unwrap();
    assert!(vec.iter().all(|byte| *byte == 1), "the child wrote to the memory of the parent");
    vec.fill(3);
    (&to_child).write_all(&[1]).unwrap();
    join(child);
    assert!(vec.iter().all(|byte| *byte == 3));
    vec.resize(12 * LARGE, 3);
    assert!(vec.iter().all(|byte| *byte == 3));
}

#[test]
fn parent_and_child_allocate_different_memory_after_a_fork() {
    drop(vec![1_u8; 5 * LARGE]);
    let (from_child, to_parent) = std::io::pipe().unwrap();
    let child = fork(|| {
        let blocks: Vec<_> = (0..20).map(|_| TestBlock::filled(layout(LARGE, 1), 2).unwrap()).collect();
        (&to_parent).write_all(&[1]).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(blocks.iter().all(|block| block.bytes().iter().all(|byte| *byte == 2)));
    });
    (&from_child).read_exact(&mut [0]).unwrap();
    let blocks: Vec<_> = (0..20).map(|_| TestBlock::filled(layout(LARGE, 1), 3).unwrap()).collect();
    join(child);
    assert!(blocks.iter().all(|block| block.bytes().iter().all(|byte| *byte == 3)));
}

#[test]
fn memory_from_before_a_fork_is_copied_and_memory_from_after_it_is_read_in_place() {
    comm_sim::run_each(world(2, 4096), |fabric| {
        let transport = fabric.open(WORLD, Instant::now() + SOON).unwrap();
        let before = vec![1_u8; 2 * LARGE];
        join(fork(|| {}));
        assert!(!transport.is_read_in_place(&before));
        // Another test may fork at any time.
        let is_read = |_| transport.is_read_in_place(&vec![1_u8; 2 * LARGE]);
        assert!((0..1000).any(is_read));
    });
}

/// A thread is at the beginning of a fork, in a handler of another library.
static IS_FORKING: AtomicBool = AtomicBool::new(false);
static HAS_ALLOCATED: AtomicBool = AtomicBool::new(false);

extern "C" fn wait_for_an_allocation() {
    IS_FORKING.store(true, Ordering::Release);
    while !HAS_ALLOCATED.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

#[test]
fn a_first_block_that_is_allocated_during_a_fork_is_copied() {
    if !is_new_process("fork::a_first_block_that_is_allocated_during_a_fork_is_copied") {
        return;
    }
    assert_eq!(Heap::usage().segments, 0, "a block was allocated before");
    before_forks(wait_for_an_allocation);
    let allocate = || {
        while !IS_FORKING.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let block = vec![1_u8; 5 * LARGE];
        HAS_ALLOCATED.store(true, Ordering::Release);
        block
    };
    let thread = std::thread::spawn(allocate);
    let (from_parent, to_child) = std::io::pipe().unwrap();
    let (from_child, to_parent) = std::io::pipe().unwrap();
    let child = fork(|| {
        let mut place = [0; 16];
        (&from_parent).read_exact(&mut place).unwrap();
        let [start, len] = [0, 8].map(|at| usize::from_ne_bytes(place[at..at + 8].try_into().unwrap()));
        overwrite(start, len);
        drop(vec![2_u8; 7 * LARGE]);
        (&to_parent).write_all(&[1]).unwrap();
    });
    let block = thread.join().unwrap();
    let place = [block.as_ptr().expose_provenance(), block.len()].map(usize::to_ne_bytes).concat();
    (&to_child).write_all(&place).unwrap();
    (&from_child).read_exact(&mut [0]).unwrap();
    join(child);
    assert!(block.iter().all(|byte| *byte == 1), "the child wrote to the memory of the parent");
}

/// Each fork makes the segments private, so that the next block needs another one.
#[test]
fn segments_stay_small_while_a_process_forks() {
    join(fork(|| {
        let before = Heap::usage().segment_bytes;
        let mut blocks = Vec::new();
        for _ in 0..20 {
            blocks.push(TestBlock::filled(layout(LARGE, 1), 1).unwrap());
            join(fork(|| {}));
        }
        let added = Heap::usage().segment_bytes - before;
        assert!(added <= 20 * 8 * LARGE, "{added}");
    }));
}

/// The buffers of all ranks, which a child overwrites.
type Buffers = Mutex<Vec<(usize, usize)>>;

fn register(buffers: &Buffers, buffer: &[f32]) {
    buffers.lock().unwrap().push((buffer.as_ptr().expose_provenance(), size_of_val(buffer)));
}

/// Makes all-reduces while a thread forks again and again, so that vectors become private in the
/// middle of calls. Each child runs `in_child`.
fn all_reduces_while_forking(ranks: usize, in_child: fn(&[(usize, usize)])) {
    let (is_done, buffers) = (AtomicBool::new(false), Buffers::default());
    let [found, revoked] = [(); 2].map(|()| AtomicUsize::new(0));
    let run = |fabric: SharedMemoryFabric| {
        let other = ChannelId { group: GroupId(77), ..WORLD };
        let probe = fabric.open(other, Instant::now() + SOON).unwrap();
        let comm = communicator(fabric);
        let len = LARGE / 4 + 5;
        let own = filled(comm.rank(), len);
        let mut expected = comm.alloc::<f32>(len).unwrap();
        expected.copy_from_slice(&own);
        comm.all_reduce(&mut expected, ReduceOp::Sum).unwrap();
        let mut kept = Vec::new();
        for round in 1.. {
            let (mut sums, mut into) = (own.clone(), vec![0.0; len]);
            register(&buffers, &sums);
            register(&buffers, &into);
            let was_found = probe.is_read_in_place(bytes_of(&sums));
            comm.all_reduce(&mut sums[..], ReduceOp::Sum).unwrap();
            found.fetch_add(usize::from(was_found), Ordering::Relaxed);
            let is_revoked = was_found && !probe.is_read_in_place(bytes_of(&sums));
            revoked.fetch_add(usize::from(is_revoked), Ordering::Relaxed);
            comm.all_reduce_into(&own[..], &mut into[..], ReduceOp::Sum).unwrap();
            assert!(sums[..] == expected[..] && into[..] == expected[..], "{ranks} ranks");
            kept.push((sums, into));
            // As long as no fork met a call.
            let goes_on = round < 20 || round < 500 && revoked.load(Ordering::Relaxed) == 0;
            if comm.all_reduce_scalar(u8::from(goes_on), ReduceOp::Max).unwrap() == 0 {
                break;
            }
        }
        assert!(kept.iter().all(|(sums, into)| sums[..] == expected[..] && into[..] == expected[..]));
        comm.barrier().unwrap();
        is_done.store(true, Ordering::Relaxed);
        // The last child may still use the addresses.
        kept
    };
    std::thread::scope(|scope| {
        let forks = scope.spawn(|| {
            let mut forks = 0;
            while !is_done.load(Ordering::Relaxed) {
                let buffers = buffers.lock().unwrap().clone();
                join(fork(|| in_child(&buffers)));
                forks += 1;
                std::thread::sleep(Duration::from_micros(500 * (forks % 10)));
            }
            forks
        });
        let kept = comm_sim::run_each(world(ranks, 1 << 16), run);
        let forks = forks.join().unwrap();
        drop(kept);
        // The forks, the vectors that were in a segment, and those made private in a call.
        let counts = (forks, found.load(Ordering::Relaxed), revoked.load(Ordering::Relaxed));
        // Otherwise the forks and the vectors never met.
        assert!(counts.0 > 0 && counts.1 > 0 && counts.2 > 0, "{ranks} ranks: {counts:?}");
    });
}

fn bytes_of(elements: &[f32]) -> &[u8] {
    comm_core::bytemuck::cast_slice(elements)
}

#[test]
fn results_are_right_while_children_end_at_once() {
    [2, 4].into_iter().for_each(|ranks| all_reduces_while_forking(ranks, |_| {}));
}

#[test]
fn results_are_right_while_children_overwrite_their_copies() {
    let overwrite = |buffers: &[(usize, usize)]| {
        buffers.iter().rev().take(8).for_each(|(start, len)| overwrite(*start, *len));
    };
    [2, 4].into_iter().for_each(|ranks| all_reduces_while_forking(ranks, overwrite));
}
