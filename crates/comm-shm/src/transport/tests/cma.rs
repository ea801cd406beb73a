//! Cross-memory attach: which pieces it reads, when they are released, and invalid addresses.

use super::*;
use crate::descriptors::{CMA_BYTES_MAX, CMA_DESCRIPTORS_MAX, CMA_REGION, Descriptor};
use crate::regions::Regions;

/// The smallest piece that it reads, less than a ring holds.
const CMA_BYTES_MIN: usize = 1000;
/// More than a ring holds.
const LARGE: usize = 3 * CAPACITY + 5;

/// Ranks 0 and 1, which read registered memory of each other. Nothing else is read in place.
fn pair() -> [SharedMemoryTransport; 2] {
    let regions = Arc::<Regions>::default();
    let export = ExportConfig { regions, bytes_min: usize::MAX, cma_bytes_min: CMA_BYTES_MIN };
    transports(connections(), &export)
}

fn transports([near, far]: [Connection; 2], export: &ExportConfig) -> [SharedMemoryTransport; 2] {
    [transport(0, near, Some(export)), transport(1, far, Some(export))]
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn send(transport: &mut SharedMemoryTransport, bytes: &[u8]) -> usize {
    transport.try_send(1, &[IoSlice::new(bytes)]).unwrap()
}

#[test]
fn registered_memory_is_read_in_place_and_released_once_it_was_read() {
    let [mut near, mut far] = pair();
    let mut memory = pattern(LARGE);
    near.register(&[&memory]);
    assert_eq!(near.try_send(1, &[IoSlice::new(b"head"), IoSlice::new(&memory)]).unwrap(), LARGE + 4);
    assert_eq!(near.released(1), 4);
    memory.fill(255);
    let mut into = vec![0; LARGE + 3];
    assert_eq!(far.try_recv(0, &mut into).unwrap(), LARGE + 3);
    assert_eq!(&into[..4], b"head");
    assert!(into[4..].iter().all(|byte| *byte == 255), "it was copied when it was sent");
    assert_eq!(near.released(1), 4, "a byte is not read");
    assert_eq!(far.fill_buf(0, 100).unwrap().len(), 1);
    far.consume(0, 1).unwrap();
    assert_eq!(near.released(1), LARGE as u64 + 4);
}

#[test]
fn small_pieces_and_memory_that_is_not_registered_are_copied() {
    let [mut near, _far] = pair();
    let memory = pattern(CMA_BYTES_MIN);
    near.register(&[&memory]);
    assert_eq!(send(&mut near, &memory[1..]), CMA_BYTES_MIN - 1);
    assert_eq!(near.released(1), CMA_BYTES_MIN as u64 - 1);
    assert_eq!(send(&mut near, &pattern(CMA_BYTES_MIN)), CMA_BYTES_MIN);
    assert_eq!(near.released(1), 2 * CMA_BYTES_MIN as u64 - 1);
}

#[test]
fn memory_that_no_other_process_can_read_is_copied() {
    let [mut near, mut far] = pair();
    let Some(page) = crate::cma::secret() else { return };
    near.register(&[page]);
    assert_eq!(send(&mut near, page), CAPACITY);
    assert_eq!(near.released(1), CAPACITY as u64);
    assert_eq!(far.try_recv(0, &mut [0; CAPACITY]).unwrap(), CAPACITY);
}

#[test]
fn memory_is_copied_for_a_peer_that_cannot_read_it() {
    let [near, far] = connections();
    let export =
        ExportConfig { regions: Arc::default(), bytes_min: usize::MAX, cma_bytes_min: CMA_BYTES_MIN };
    // The other side neither opens this process nor announces that it can read it.
    let (mut near, mut far) = (transport(0, near, Some(&export)), transport(1, far, None));
    let memory = pattern(LARGE);
    near.register(&[&memory]);
    assert_eq!(send(&mut near, &memory), CAPACITY);
    assert_eq!(near.released(1), CAPACITY as u64);
    assert_eq!(far.try_recv(0, &mut vec![0; LARGE]).unwrap(), CAPACITY);
}

/// A few parts are sent immediately, then none until one has been read.
#[test]
fn large_pieces_are_sent_in_a_few_descriptors_at_a_time() {
    let [mut near, mut far] = pair();
    let memory = pattern(10 * CMA_BYTES_MAX);
    near.register(&[&memory]);
    let mut sent = 0;
    for _ in 0..CMA_DESCRIPTORS_MAX {
        assert_eq!(send(&mut near, &memory[sent..]), CMA_BYTES_MAX);
        sent += CMA_BYTES_MAX;
    }
    assert_eq!(send(&mut near, &memory[sent..]), 0);
    let mut interest = Interest::default();
    interest.add_send(1);
    while near.arm(&interest).unwrap() == Armed::Ready {}
    let mut into = vec![0; CMA_BYTES_MAX];
    assert_eq!(far.try_recv(0, &mut into).unwrap(), CMA_BYTES_MAX);
    let mut ready = [rustix::event::PollFd::new(&near.epoll, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut ready, Some(&Timespec::default())).unwrap(), 1, "no notification");
    assert_eq!(near.arm(&interest).unwrap(), Armed::Ready);
    assert_eq!(send(&mut near, &memory[sent..]), CMA_BYTES_MAX);
    assert_eq!(near.released(1), CMA_BYTES_MAX as u64);
}

#[test]
fn the_stream_has_the_bytes_that_were_sent_on_every_path() {
    for seed in 0..200 {
        let [mut near, mut far] = pair();
        let mut random = fastrand::Rng::with_seed(seed);
        let stream: Vec<u8> = (0..300_000).map(|_| random.u8(..)).collect();
        let (mut sent, mut received) = (0, 0);
        while received < stream.len() {
            let memory = [&stream[..]];
            near.register(&memory[..usize::from(random.u8(..4) > 0)]);
            let len = random.usize(..100_000) >> random.u32(..14);
            let (first, second) = stream[sent..].split_at(len.min(stream.len() - sent));
            let second = &second[..second.len().min(random.usize(..2) * 5000)];
            sent += near.try_send(1, &[IoSlice::new(first), IoSlice::new(second)]).unwrap();
            let mut into = vec![0; 1 + (random.usize(..100_000) >> random.u32(..17))];
            let moved = if random.bool() {
                far.try_recv(0, &mut into).unwrap()
            } else {
                let filled = far.fill_buf(0, into.len()).unwrap().copy_to(&mut into);
                let available = sent - received;
                assert!(filled >= available.min(into.len()).min(8), "{filled} of {available} bytes");
                let used = random.usize(..=filled);
                far.consume(0, used).unwrap();
                used
            };
            assert!(into[..moved] == stream[received..received + moved], "seed {seed}, byte {received}");
            received += moved;
        }
        assert_eq!(near.released(1), stream.len() as u64);
    }
}

#[test]
fn revoked_memory_does_not_count_as_received() {
    let [mut near, mut far] = pair();
    let memory = pattern(LARGE);
    near.register(&[&memory]);
    send(&mut near, &memory);
    assert_eq!(far.fill_buf(0, LARGE).unwrap().len(), LARGE);
    near.revoke();
    assert_eq!(near.released(1), LARGE as u64, "the owner may write to the memory again");
    assert!(is_revoked(&far.consume(0, LARGE)));
    assert!(is_revoked(&far.try_recv(0, &mut [0; 8])));
    assert!(is_revoked(&near.try_send(1, &[IoSlice::new(b"more")])));

    let [mut near, mut far] = pair();
    let memory = crate::region::Region::create(1, LARGE, crate::region::PeerAccess::Read).unwrap();
    let allocation = memory.allocation(LARGE, Box::new(()));
    near.register(&[allocation.bytes()]);
    assert_eq!(send(&mut near, allocation.bytes()), LARGE);
    near.revoke();
    drop((allocation, memory));
    assert!(is_revoked(&far.try_recv(0, &mut [0; LARGE])), "unmapped memory");
}

fn is_garbage_of_rank_0<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::PeerLost { peer: 0, loss: Loss::Protocol(_), .. }))
}

#[test]
fn unmapped_addresses_end_the_stream() {
    let here = pattern(100);
    let good = Descriptor { start: 0, len: 100, region: CMA_REGION, offset: here.as_ptr().addr() as u64 };
    let bad = [0, 1, 4096, u64::MAX, u64::MAX - 50, 1 << 63].map(|offset| Descriptor { offset, ..good });
    for descriptor in [good].into_iter().chain(bad) {
        for in_place in [false, true] {
            let [near, far] = connections();
            let export =
                ExportConfig { regions: Arc::default(), bytes_min: usize::MAX, cma_bytes_min: CMA_BYTES_MIN };
            let mut far = transport(1, far, Some(&export));
            let control = near.segment.control(Direction::Out);
            control.overwrite_descriptor(0, descriptor, 1);
            control.overwrite(Some(100), None);
            let mut into = [0; 100];
            let result = if in_place {
                far.fill_buf(0, 100).map(|filled| filled.copy_to(&mut into))
            } else {
                far.try_recv(0, &mut into)
            };
            if descriptor == good {
                assert_eq!((result.unwrap(), &into[..]), (100, &here[..]));
            } else {
                assert!(is_garbage_of_rank_0(&result), "{descriptor:?}: {result:?}");
                assert!(is_garbage_of_rank_0(&far.try_recv(0, &mut into)));
            }
        }
    }
}

#[test]
fn an_address_that_this_rank_did_not_announce_to_read_ends_the_stream() {
    let here = pattern(100);
    let (mut transport, peer) = with_peer();
    let control = peer.segment.control(Direction::Back);
    let offset = here.as_ptr().addr() as u64;
    control.overwrite_descriptor(0, Descriptor { start: 0, len: 100, region: CMA_REGION, offset }, 1);
    control.overwrite(Some(100), None);
    assert!(is_garbage(&transport.try_recv(1, &mut [0; 100])));
}
