//! Blocks are disjoint, keep their contents, and have the requested size and alignment.

use std::sync::mpsc;
use std::thread;

use comm_shm::Heap;
use proptest::prelude::*;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::block::{TestBlock, layout};
use crate::process::{fork, join};

const LARGE: usize = Heap::LARGE_BYTES_MIN;

fn is_all(bytes: &[u8], value: u8) -> bool {
    bytes.iter().all(|byte| *byte == value)
}

#[derive(Debug, Clone)]
enum Step {
    Allocate { size: usize, align_log2: u32, zeroed: bool },
    Resize { at: usize, size: usize },
    Free { at: usize },
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        1..10_000_usize,
        LARGE - 5..LARGE + 5,
        LARGE..8 * LARGE,
        (1..20_usize).prop_map(|n| n * LARGE)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (size(), 0..22_u32, any::<bool>())
            .prop_map(|(size, align_log2, zeroed)| Step::Allocate { size, align_log2, zeroed }),
        3 => (any::<usize>(), size()).prop_map(|(at, size)| Step::Resize { at, size }),
        3 => any::<usize>().prop_map(|at| Step::Free { at }),
    ]
}

/// Executes steps. Each block is filled with a value of its own.
fn execute(steps: Vec<Step>) {
    let mut blocks: Vec<(TestBlock, u8)> = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        let value = (number % 251) as u8 + 1;
        match step {
            Step::Allocate { size, align_log2, zeroed } => {
                let layout = layout(size, 1 << align_log2);
                let block = if zeroed {
                    let mut block = TestBlock::zeroed(layout).unwrap();
                    assert!(is_all(block.bytes(), 0));
                    block.bytes_mut().fill(value);
                    block
                } else {
                    TestBlock::filled(layout, value).unwrap()
                };
                blocks.push((block, value));
            }
            Step::Resize { at, size } if !blocks.is_empty() => {
                let at = at % blocks.len();
                let (block, value) = &mut blocks[at];
                block.resize(size, *value);
            }
            Step::Free { at } if !blocks.is_empty() => {
                let (block, value) = blocks.swap_remove(at % blocks.len());
                assert!(is_all(block.bytes(), value));
            }
            _ => {}
        }
    }
    assert!(blocks.iter().all(|(block, value)| is_all(block.bytes(), *value)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..Default::default() })]
    #[test]
    fn blocks_keep_their_contents(steps in prop::collection::vec(step(), 0..60)) {
        execute(steps);
    }
}

#[test]
fn only_large_blocks_are_in_segments() {
    // Others allocate concurrently, so counters do not tell.
    let is_in_segment = |block: &TestBlock| block.address().is_multiple_of(4096);
    let large: Vec<_> = (0..4).map(|_| TestBlock::filled(layout(LARGE, 1), 1).unwrap()).collect();
    let small: Vec<_> = (0..4).map(|_| TestBlock::filled(layout(LARGE - 1, 1), 1).unwrap()).collect();
    assert!(large.iter().all(is_in_segment) && !small.iter().any(is_in_segment));
}

#[test]
fn memory_is_zero_again_when_it_is_reused() {
    for round in 0..20 {
        let sizes = [LARGE, 3 * LARGE + round, LARGE + 4096 * round];
        let blocks = sizes.map(|size| TestBlock::filled(layout(size, 1), 0xff).unwrap());
        drop(blocks);
        let blocks = sizes.map(|size| TestBlock::zeroed(layout(size + 5, 1)).unwrap());
        assert!(blocks.iter().all(|block| is_all(block.bytes(), 0)));
    }
}

#[test]
fn blocks_grow_and_shrink_across_the_limit() {
    let mut block = TestBlock::filled(layout(100, 64), 7).unwrap();
    for size in [LARGE - 1, LARGE, 4 * LARGE, 64 * LARGE, 64 * LARGE + 1, 3 * LARGE, LARGE - 1, 5, LARGE] {
        block.resize(size, 7);
        assert!(block.bytes().len() == size && is_all(block.bytes(), 7), "{size}");
    }
    let mut vec = Vec::new();
    (0..3 * LARGE as u64).for_each(|element| vec.push(element));
    assert!(vec.iter().enumerate().all(|(at, element)| *element == at as u64));
}

#[test]
fn every_alignment_is_kept() {
    for align in [1, 64, 4096, 8192, 2 << 20, 4 << 20, 64 << 20] {
        for size in [100, LARGE, 5 * LARGE + 1] {
            let mut block = TestBlock::filled(layout(size, align), 3).unwrap();
            block.resize(size + LARGE, 3);
            assert!(is_all(block.bytes(), 3));
        }
    }
}

#[test]
fn more_memory_than_there_is_cannot_be_allocated() {
    for size in [isize::MAX as usize - 4095, 1 << 62, 1 << 50] {
        assert!(TestBlock::zeroed(layout(size, 1)).is_none(), "{size}");
        assert!(TestBlock::filled(layout(size, 4096), 1).is_none(), "{size}");
        assert!(Vec::<u8>::new().try_reserve_exact(size).is_err());
    }
    drop(TestBlock::filled(layout(LARGE, 1), 1).unwrap());
}

#[test]
fn a_block_is_freed_in_another_thread() {
    let (send, receive) = mpsc::channel::<(TestBlock, u8)>();
    thread::scope(|scope| {
        for thread in 0..4_u8 {
            let send = send.clone();
            scope.spawn(move || {
                for round in 0..50 {
                    let size = LARGE + usize::from(thread) * 70_000 + round * 10_000;
                    let value = thread * 50 + round as u8;
                    send.send((TestBlock::filled(layout(size, 8), value).unwrap(), value)).unwrap();
                }
            });
        }
        drop(send);
        let mut waiting = Vec::new();
        for (block, value) in receive {
            waiting.push((block, value));
            if waiting.len() > 10 {
                let (block, value) = waiting.swap_remove(value as usize % waiting.len());
                assert!(is_all(block.bytes(), value));
            }
        }
        assert!(waiting.iter().all(|(block, value)| is_all(block.bytes(), *value)));
    });
}

/// In a child, whose limits are its own, and where no other thread allocates.
#[test]
fn segments_are_released_and_few_are_kept() {
    join(fork(|| {
        let before = Heap::usage();
        let blocks: Vec<_> = (0..100).map(|_| TestBlock::filled(layout(16 * LARGE, 1), 1).unwrap()).collect();
        let during = Heap::usage();
        assert!(during.used_bytes - before.used_bytes >= 1600 * LARGE, "{before:?} {during:?}");
        assert!(during.segment_bytes - before.segment_bytes <= 2400 * LARGE, "{before:?} {during:?}");
        assert!(during.segments - before.segments <= 40, "{during:?}");
        drop(blocks);
        let after = Heap::usage();
        assert_eq!(after.used_bytes, before.used_bytes);
        assert!(after.segment_bytes - before.segment_bytes <= before.used_bytes.max(128 << 20), "{after:?}");
        drop(TestBlock::filled(layout(LARGE, 1), 1));
        let kept = Heap::usage();
        assert!(kept.segment_bytes > before.segment_bytes, "a segment is kept");
        for _ in 0..1000 {
            drop(TestBlock::filled(layout(LARGE, 1), 1));
        }
        assert_eq!(Heap::usage(), kept);
    }));
}

#[test]
fn segments_that_were_used_last_are_kept() {
    join(fork(|| {
        // Small ones, which nothing uses any more, and less than is kept.
        drop((0..12).map(|_| TestBlock::filled(layout(6 * LARGE, 1), 1).unwrap()).collect::<Vec<_>>());
        let mut last = TestBlock::filled(layout(64 * LARGE, 1), 1).unwrap();
        let mut addresses = Vec::new();
        for _ in 0..20 {
            last = TestBlock::filled(layout(64 * LARGE, 1), 1).unwrap();
            addresses.push(last.address());
        }
        drop(last);
        addresses.drain(..10);
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 2, "two segments are used in turns");
        assert!(Heap::usage().segment_bytes <= 300 * LARGE, "{:?}", Heap::usage());
    }));
}

#[test]
fn blocks_come_from_the_system_if_there_are_no_descriptors() {
    join(fork(|| {
        let limit = Rlimit { current: Some(3), maximum: Some(3) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let before = Heap::usage();
        let blocks: Vec<_> = (0..20).map(|_| TestBlock::filled(layout(64 * LARGE, 1), 5).unwrap()).collect();
        assert!(blocks.iter().all(|block| is_all(block.bytes(), 5)));
        let mut block = TestBlock::filled(layout(64 * LARGE, 1), 5).unwrap();
        block.resize(100 * LARGE, 5);
        block.resize(10, 5);
        let after = Heap::usage();
        assert!(after.fallbacks >= before.fallbacks + 20 && after.segments <= before.segments, "{after:?}");
    }));
}

#[test]
fn blocks_come_from_the_system_if_files_cannot_be_that_large() {
    join(fork(|| {
        let before = Heap::usage();
        // A file cannot exceed this size.
        let limit = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
        setrlimit(Resource::Fsize, limit).unwrap();
        let block = TestBlock::filled(layout(300 * LARGE, 1), 5).unwrap();
        assert!(is_all(block.bytes(), 5));
        assert!(Heap::usage().segments <= before.segments);
    }));
}
