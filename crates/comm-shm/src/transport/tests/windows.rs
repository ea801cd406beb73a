//! Results are written into windows, and into nothing else.

use std::ops::Range;

use comm_core::Allocation;

use super::*;
use crate::descriptors::{Descriptor, WINDOW};
use crate::region::PeerAccess;
use crate::regions::Regions;

const CALL: u64 = 3;

/// Rank 0, which owns memory with pages into which rank 1 may write.
struct Pair {
    owner: SharedMemoryTransport,
    writer: SharedMemoryTransport,
    regions: Arc<Regions>,
    page: usize,
}

impl Pair {
    fn new() -> Self {
        let regions = Arc::<Regions>::default();
        Self { page: rustix::param::page_size(), ..Self::among(&regions) }
    }

    /// Another channel of the same ranks.
    fn among(regions: &Arc<Regions>) -> Self {
        let [near, far] = connections();
        let export = |regions| ExportConfig { regions, bytes_min: 1, cma_bytes_min: usize::MAX };
        let (own, other) = (export(Arc::clone(regions)), export(Arc::default()));
        Self {
            owner: transport(0, near, Some(&own)),
            writer: transport(1, far, Some(&other)),
            regions: Arc::clone(regions),
            page: rustix::param::page_size(),
        }
    }

    fn allocate(&self, pages: usize) -> Allocation {
        self.regions.allocate(pages * self.page, 1, PeerAccess::Write).unwrap()
    }

    /// Puts bytes at an offset in the window, in as many parts as it takes. Returns how many were
    /// accepted, which are not all if there is no window.
    fn put(&mut self, offset: usize, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            match self.writer.try_put(0, CALL, offset + done, &bytes[done..]).unwrap() {
                Some(sent) if sent > 0 => done += sent,
                _ => break,
            }
        }
        done
    }
}

/// Returns the pages, as a range of bytes, that lie wholly in a range.
fn whole_pages(range: &Range<usize>, page: usize) -> Range<usize> {
    range.start.next_multiple_of(page)..range.end / page * page
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 + 1).collect()
}

#[test]
fn bytes_are_put_where_they_are_received_and_nowhere_else() {
    let page = rustix::param::page_size();
    let ranges = [0..3 * page, 5..3 * page - 9, page - 3..2 * page + 1, 8..page, page..2 * page];
    for window in ranges {
        for part in [0..window.len(), 1..window.len() - 1, 0..7, window.len() / 2..window.len()] {
            let mut pair = Pair::new();
            let mut memory = pair.allocate(3);
            memory.bytes_mut().fill(255);
            pair.owner.open_window(&mut memory.bytes_mut()[window.clone()], CALL);
            let (expected, pages) = (pattern(part.len()), whole_pages(&window, page));
            let mut sent = pair.put(part.start, &expected);
            if pages.is_empty() {
                assert_eq!(sent, 0);
                continue;
            }
            // What lies on whole pages is there before it is received.
            let place = window.start + part.start..window.start + part.end;
            let put = place.start.max(pages.start)..(place.start + sent).min(pages.end);
            let is_right = |at: usize| match put.contains(&at) {
                true => memory.bytes()[at] == expected[at - place.start],
                false => memory.bytes()[at] == 255,
            };
            assert!((0..3 * page).all(is_right), "{window:?} {part:?}");
            let mut received = 0;
            while received < part.len() {
                sent += pair.put(part.start + sent, &expected[sent..]);
                let into = &mut memory.bytes_mut()[place.start + received..place.end];
                received += pair.owner.try_recv(1, into).unwrap();
            }
            pair.owner.close_window();
            assert!(memory.bytes()[place.clone()] == expected);
            assert!(memory.bytes()[..place.start].iter().all(|byte| *byte == 255));
            assert!(memory.bytes()[place.end..].iter().all(|byte| *byte == 255));
            assert_eq!(pair.writer.released(0), pair.writer.peers[0].as_ref().unwrap().accepted());
        }
    }
}

#[test]
fn what_was_put_is_copied_if_it_is_received_elsewhere() {
    let mut pair = Pair::new();
    let mut memory = pair.allocate(2);
    pair.owner.open_window(memory.bytes_mut(), CALL);
    let expected = pattern(5000);
    assert_eq!(pair.put(10, &expected), 5000);
    assert!(pair.owner.fill_buf_copies(1));
    assert!(pair.owner.fill_buf(1, 100).unwrap().is_empty());
    let mut elsewhere = vec![0; 5000];
    assert_eq!(pair.owner.try_recv(1, &mut elsewhere[..3]).unwrap(), 3);
    assert_eq!(pair.owner.try_recv(1, &mut elsewhere[3..]).unwrap(), 4997);
    assert_eq!(elsewhere, expected);
}

#[test]
fn a_window_is_open_only_for_its_call_and_only_in_memory_for_it() {
    let mut pair = Pair::new();
    let bytes = pattern(100);
    assert_eq!(pair.put(0, &bytes), 0, "no window");
    let mut memory = pair.allocate(1);
    for call in [CALL - 1, CALL + 1] {
        pair.owner.open_window(memory.bytes_mut(), call);
        assert_eq!(pair.put(0, &bytes), 0, "call {call}");
    }
    let mut read_only = pair.regions.allocate(pair.page, 1, PeerAccess::Read).unwrap();
    assert!(pair.owner.is_window(memory.bytes()) && !pair.owner.is_window(read_only.bytes()));
    assert!(!pair.owner.is_window(&memory.bytes()[1..]) && !pair.owner.is_window(&vec![0; pair.page]));
    pair.owner.open_window(read_only.bytes_mut(), CALL);
    assert_eq!(pair.put(0, &bytes), 0, "memory that peers can only read");
    pair.owner.open_window(&mut vec![0; pair.page], CALL);
    assert_eq!(pair.put(0, &bytes), 0, "memory of the heap");
    pair.owner.open_window(memory.bytes_mut(), CALL);
    for (offset, len) in [(pair.page - 99, 100), (pair.page, 1), (usize::MAX, 1)] {
        assert_eq!(pair.put(offset, &bytes[..len]), 0, "{len} at {offset}");
    }
    assert_eq!(pair.put(pair.page - 100, &bytes), 100);
    pair.owner.revoke();
    assert_eq!(pair.put(0, &bytes), 0, "a closed window");
}

#[test]
fn a_window_that_nobody_writes_is_closed_and_stays_readable() {
    let mut pair = Pair::new();
    let mut memory = pair.allocate(2);
    pair.owner.open_window(memory.bytes_mut(), CALL);
    assert_eq!(pair.put(0, &pattern(100)), 100);
    pair.owner.revoke();
    assert!(pair.owner.is_read_in_place(memory.bytes()));
}

/// The owner gives up while a peer is between the check of its window and the last byte.
#[test]
fn a_peer_that_is_writing_when_the_window_is_closed_does_not_write_to_memory_of_its_owner() {
    let mut pair = Pair::new();
    let mut other = Pair::among(&pair.regions);
    let page = pair.page;
    let mut memory = pair.allocate(4);
    memory.bytes_mut().fill(7);
    let (first, second) = memory.bytes_mut().split_at_mut(2 * page);
    pair.owner.open_window(first, CALL);
    other.owner.open_window(second, CALL);
    assert_eq!(pair.put(0, &pattern(page)), page);
    let own = pair.writer.peers[0].as_mut().unwrap();
    let has_put = own.put_while((CALL, 0), &pattern(page + 1), || pair.owner.revoke());
    assert!(has_put, "the peer still writes, to pages of the file");
    assert!(first[..page] == pattern(page), "what was put before stays");
    assert!(first[page..].iter().all(|byte| *byte == 7));
    assert!(!pair.owner.is_read_in_place(first), "peers would read other bytes");
    // Another window in the same region is not affected.
    assert_eq!(other.put(0, &pattern(2 * page)), 2 * page);
    assert_eq!(other.owner.try_recv(1, second).unwrap(), 2 * page);
    assert!(second == pattern(2 * page));
    first.fill(9);
    assert!(first.iter().all(|byte| *byte == 9) && second == pattern(2 * page));
}

/// A peer that was killed while it wrote, and one whose stream has failed, cannot be asked.
#[test]
fn a_peer_that_never_says_that_it_is_done_does_not_block_the_owner() {
    let mut pair = Pair::new();
    let mut memory = pair.allocate(1);
    pair.owner.open_window(memory.bytes_mut(), CALL);
    pair.writer.peers[0].as_mut().unwrap().stop_while_putting();
    pair.owner.revoke();
    assert!(!pair.owner.is_read_in_place(memory.bytes()));
}

#[test]
fn a_claim_to_have_put_bytes_outside_a_window_ends_the_stream() {
    let page = rustix::param::page_size();
    let good = Descriptor { start: 0, len: 10, region: WINDOW, offset: 0 };
    let claims = [
        (true, good),
        (false, good),
        (true, Descriptor { offset: page as u64 - 9, ..good }),
        (true, Descriptor { offset: u64::MAX, ..good }),
        (true, Descriptor { len: page as u64 + 1, ..good }),
    ];
    for (at, (has_window, descriptor)) in claims.into_iter().enumerate() {
        let mut pair = Pair::new();
        let mut memory = pair.allocate(1);
        if has_window {
            pair.owner.open_window(memory.bytes_mut(), CALL);
        }
        let control = pair.writer.peers[0].as_ref().unwrap().outgoing_control();
        control.overwrite_descriptor(0, descriptor, 1);
        control.overwrite(Some(descriptor.len), None);
        let result = pair.owner.try_recv(1, &mut vec![0; 2 * page]);
        if at == 0 { assert_eq!(result.unwrap(), 10) } else { assert!(is_garbage(&result), "{descriptor:?}") }
    }
}

#[test]
fn the_windows_of_all_peers_are_closed_also_if_the_first_one_is_being_written() {
    let regions = Arc::<Regions>::default();
    let export = ExportConfig { regions: Arc::clone(&regions), bytes_min: 1, cma_bytes_min: usize::MAX };
    let (pairs, group) = ([connections(), connections()], Membership { rank: 0, size: 3 });
    let group = Group::new(GroupId::WORLD, group).unwrap();
    let [[first, far_first], [second, far_second]] = pairs;
    let mut owner = SharedMemoryTransport::new(group, [(1, first), (2, second)], None, Some(export)).unwrap();
    let page = rustix::param::page_size();
    let mut memory = regions.allocate(2 * page, 1, PeerAccess::Write).unwrap();
    owner.open_window(memory.bytes_mut(), CALL);
    let window = |far: &Connection| far.segment.control(Direction::Back).window(CALL);
    assert!(window(&far_first).is_some() && window(&far_second).is_some());
    far_first.segment.control(Direction::Back).begin_put();
    owner.revoke();
    assert!(window(&far_first).is_none() && window(&far_second).is_none());
}
