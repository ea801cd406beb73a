//! Regions are read in place and released, and a broken or hostile peer can only end its stream.

use comm_core::Allocation;

use super::*;
use crate::descriptors::{DESCRIPTORS_MAX, Descriptor};
use crate::exporter::RegionMessage;
use crate::fast_boxes::Inbox;
use crate::region::{PeerAccess, Region};
use crate::regions::Regions;

/// More than a ring holds.
const LARGE: usize = 3 * CAPACITY + 5;

/// Returns rank 0, which exports pieces of at least `bytes_min`, its regions, and rank 1.
fn exporter(bytes_min: usize) -> (SharedMemoryTransport, Arc<Regions>, SharedMemoryTransport) {
    let [near, far] = connections();
    let regions = Arc::<Regions>::default();
    let export = ExportConfig { regions: Arc::clone(&regions), bytes_min, cma_bytes_min: usize::MAX };
    (transport(0, near, Some(&export)), regions, transport(1, far, None))
}

fn filled(regions: &Arc<Regions>, bytes: usize) -> Allocation {
    let mut allocation = regions.allocate(bytes, 1, PeerAccess::Read).unwrap();
    allocation.bytes_mut().iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
    allocation
}

fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

fn send(transport: &mut SharedMemoryTransport, bytes: &[u8]) -> usize {
    transport.try_send(1, &[IoSlice::new(bytes)]).unwrap()
}

fn interest(peer: usize, send: bool) -> Interest {
    let mut interest = Interest::default();
    if send {
        interest.add_send(peer)
    } else {
        interest.add_recv(peer)
    }
    interest
}

#[test]
fn memory_of_regions_is_read_in_place_and_no_other() {
    let (near, regions, far) = exporter(1);
    let (memory, private) = (filled(&regions, LARGE), vec![0; LARGE]);
    assert!(near.is_read_in_place(memory.bytes()) && near.is_read_in_place(&memory.bytes()[5..]));
    assert!(!near.is_read_in_place(&private) && !far.is_read_in_place(memory.bytes()));
}

#[test]
fn a_large_piece_is_sent_at_once_and_released_when_it_was_read() {
    let (mut near, regions, mut far) = exporter(1);
    let memory = filled(&regions, LARGE);
    assert_eq!(near.try_send(1, &[IoSlice::new(b"head"), IoSlice::new(memory.bytes())]).unwrap(), LARGE + 4);
    assert_eq!(near.released(1), 4);
    let mut into = vec![0; LARGE + 3];
    assert_eq!(far.try_recv(0, &mut into).unwrap(), LARGE + 3);
    assert_eq!(&into[..4], b"head");
    assert!(into[4..].iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
    assert_eq!(near.released(1), 4, "a byte is not read");
    assert_eq!(far.fill_buf(0, 100).unwrap().len(), 1);
    far.consume(0, 1).unwrap();
    assert_eq!(near.released(1), LARGE as u64 + 4);
}

#[test]
fn a_region_is_read_in_place() {
    let (mut near, regions, mut far) = exporter(1000);
    let mut memory = filled(&regions, LARGE);
    assert_eq!(send(&mut near, &memory.bytes()[10..1010]), 1000);
    assert_eq!(send(&mut near, &memory.bytes()[..999]), 999, "copied");
    memory.bytes_mut().fill(255);
    let mut into = [0; 1999];
    assert_eq!(far.try_recv(0, &mut into).unwrap(), 1999);
    assert!(into[..1000].iter().all(|byte| *byte == 255));
    assert!(into[1000..].iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
}

#[test]
fn memory_of_the_heap_is_copied() {
    let (mut near, _regions, _far) = exporter(1);
    assert_eq!(send(&mut near, &[1; LARGE]), CAPACITY);
    assert_eq!(near.released(1), CAPACITY as u64);
}

/// Of a stream in one direction, the ring holds more.
#[test]
fn other_memory_goes_through_boxes_only_in_exchanges() {
    const LEN: usize = 2000;
    let ([near, far], segment) = watched_connections();
    let export = ExportConfig { regions: Arc::default(), bytes_min: 1000, cma_bytes_min: LEN + 1 };
    let (mut near, mut far) = (transport(0, near, Some(&export)), transport(1, far, None));
    let mut inbox = Inbox::new();
    let mut is_boxed = |start: usize| {
        let message = inbox.at(segment.boxes(Direction::Out), start as u64);
        message.inspect(|message| inbox.take(message)).is_some()
    };
    for exchange in 0..5 {
        let start = 2 * LEN * exchange;
        assert_eq!((send(&mut near, &[1; LEN]), send(&mut near, &[2; LEN])), (LEN, LEN));
        assert_eq!((is_boxed(start), is_boxed(start + LEN)), (true, false), "{exchange}");
        let mut into = [0; 2 * LEN];
        assert_eq!(far.try_recv(0, &mut into).unwrap(), 2 * LEN);
        assert!(into[..LEN] == [1; LEN] && into[LEN..] == [2; LEN]);
        assert_eq!(far.try_send(0, &[IoSlice::new(&[3])]).unwrap(), 1);
        assert_eq!(near.try_recv(1, &mut [0]).unwrap(), 1);
    }
    assert_eq!(send(&mut near, &[1; LEN + 1]), LEN + 1);
    assert!(!is_boxed(10 * LEN), "the reader would copy it from the memory of the writer");
}

#[test]
fn a_send_without_a_free_descriptor_waits() {
    let (mut near, regions, mut far) = exporter(1);
    let memory = filled(&regions, LARGE);
    let sent = (0..DESCRIPTORS_MAX + 5).map(|_| send(&mut near, memory.bytes())).filter(|sent| *sent > 0);
    assert_eq!(sent.count(), DESCRIPTORS_MAX);
    while near.arm(&interest(1, true)).unwrap() == Armed::Ready {}
    let mut into = vec![0; LARGE];
    assert_eq!(far.try_recv(0, &mut into).unwrap(), LARGE);
    assert_eq!(near.arm(&interest(1, true)).unwrap(), Armed::Ready);
    assert_eq!(send(&mut near, memory.bytes()), LARGE);
    assert_eq!(send(&mut near, memory.bytes()), 0);
}

/// A sender that waits for release sleeps although there is space, and the release wakes it.
#[test]
fn a_sender_that_waits_for_release_sleeps_and_is_woken() {
    let (mut near, regions, mut far) = exporter(1);
    let memory = filled(&regions, LARGE);
    send(&mut near, memory.bytes());
    assert_eq!(near.arm(&interest(1, true)).unwrap(), Armed::Sleep);
    let mut into = vec![0; LARGE - 1];
    assert_eq!(far.try_recv(0, &mut into).unwrap(), LARGE - 1);
    assert_eq!(near.arm(&interest(1, true)).unwrap(), Armed::Sleep, "it is not read to the end");
    assert_eq!(far.try_recv(0, &mut [0]).unwrap(), 1);
    let mut ready = [rustix::event::PollFd::new(&near.epoll, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut ready, Some(&Timespec::default())).unwrap(), 1, "no notification");
    assert_eq!(near.arm(&interest(1, true)).unwrap(), Armed::Ready);
}

#[test]
fn an_element_in_two_pieces_is_received_whole() {
    for first in 1..8 {
        let (mut near, regions, mut far) = exporter(8);
        let memory = filled(&regions, 64);
        send(&mut near, &[7; 7][..first]);
        assert_eq!(far.fill_buf(0, 100).unwrap().len(), first);
        assert_eq!(far.arm(&interest(0, false)).unwrap(), Armed::Sleep);
        send(&mut near, memory.bytes());
        assert_eq!(far.arm(&interest(0, false)).unwrap(), Armed::Ready);
        let mut element = [0; 8];
        assert_eq!(far.fill_buf(0, 100).unwrap().copy_to(&mut element), 8);
        assert!(element[..first].iter().all(|byte| *byte == 7) && element[first] == 0);
        far.consume(0, 8).unwrap();
        let mut rest = [0; 64];
        assert_eq!(far.try_recv(0, &mut rest).unwrap(), 56 + first);
        assert_eq!(rest[0], pattern(8 - first));
    }
}

/// Bytes before the revoked memory do.
#[test]
fn revoked_memory_does_not_count_as_received() {
    let (mut near, regions, mut far) = exporter(100);
    let memory = filled(&regions, LARGE);
    send(&mut near, b"before");
    send(&mut near, memory.bytes());
    let mut into = vec![0; 6];
    assert_eq!(far.try_recv(0, &mut into).unwrap(), 6);
    assert_eq!(far.fill_buf(0, LARGE).unwrap().len(), LARGE);
    near.revoke();
    assert_eq!(near.released(1), LARGE as u64 + 6, "the owner may write to the memory again");
    assert!(is_revoked(&far.consume(0, LARGE)));
    assert!(is_revoked(&far.try_recv(0, &mut into)));
    assert!(is_revoked(&far.fill_buf(0, 1)));
    assert!(is_revoked(&near.try_send(1, &[IoSlice::new(b"more")])));
    assert_eq!(near.arm(&interest(1, true)).unwrap(), Armed::Ready);

    let (mut near, regions, mut far) = exporter(100);
    let memory = filled(&regions, LARGE);
    send(&mut near, memory.bytes());
    near.revoke();
    drop(memory);
    assert!(is_revoked(&far.try_recv(0, &mut [0; LARGE])), "memory that was never mapped");
}

#[test]
fn buffers_may_be_dropped_while_the_stream_is_open() {
    let (mut near, regions, mut far) = exporter(1);
    let mut into = vec![0; 10];
    for round in 0..3 * crate::exporter::REGIONS_MAX {
        let memory = filled(&regions, 10);
        send(&mut near, memory.bytes());
        assert_eq!(far.try_recv(0, &mut into).unwrap(), 10, "round {round}");
    }
    let buffers: Vec<_> = (0..2 * crate::exporter::REGIONS_MAX).map(|_| filled(&regions, 10)).collect();
    for memory in buffers.iter().chain(&buffers) {
        into.fill(0);
        send(&mut near, memory.bytes());
        assert_eq!(far.try_recv(0, &mut into).unwrap(), 10);
        assert_eq!(into[9], pattern(9));
    }
}

#[test]
fn a_region_can_be_read_after_its_owner_has_dropped_it_and_its_transport() {
    let (mut near, regions, mut far) = exporter(1);
    let memory = filled(&regions, LARGE);
    send(&mut near, memory.bytes());
    drop((near, memory, regions));
    while far.arm(&Interest::default()).unwrap() == Armed::Sleep {}
    let mut into = vec![0; LARGE];
    assert_eq!(far.try_recv(0, &mut into).unwrap(), LARGE);
    assert_eq!(into[LARGE - 1], pattern(LARGE - 1));
    assert!(matches!(far.try_recv(0, &mut into), Err(Error::PeerLost { loss: Loss::Closed, .. })));
}

#[test]
fn the_exit_of_the_reader_releases_memory() {
    let (mut near, regions, far) = exporter(1);
    let memory = filled(&regions, LARGE);
    send(&mut near, memory.bytes());
    drop(far);
    while near.arm(&interest(1, true)).unwrap() == Armed::Sleep {}
    assert_eq!(near.released(1), LARGE as u64);
    assert!(near.try_send(1, &[IoSlice::new(b"more")]).is_err());
}

fn offer(peer: &Connection, region: &Region, message: RegionMessage) {
    socket::send(&peer.socket, &message.encode(), Some(region.file())).unwrap();
}

#[test]
fn invalid_descriptors_end_the_stream() {
    let page = rustix::param::page_size() as u64;
    let good = Descriptor { start: 0, len: 10, region: 1, offset: 0 };
    let bad = [
        Descriptor { region: 2, ..good },
        Descriptor { len: page + 1, ..good },
        Descriptor { offset: page, ..good },
        Descriptor { offset: page - 9, ..good },
        Descriptor { offset: u64::MAX, ..good },
        Descriptor { len: u64::MAX, ..good },
        Descriptor { len: 0, ..good },
        Descriptor { start: CAPACITY as u64 + 1, ..good },
    ];
    for descriptor in [good].into_iter().chain(bad) {
        let (mut transport, peer) = with_peer();
        let region = Region::create(1, 10, PeerAccess::Read).unwrap();
        offer(&peer, &region, RegionMessage { region: 1, evicted: 0 });
        let control = peer.segment.control(Direction::Back);
        control.overwrite_descriptor(0, descriptor, 1);
        control.overwrite(Some(u64::MAX), None);
        let result = transport.try_recv(1, &mut [0; 100]);
        if descriptor == good {
            assert_eq!(result.unwrap(), 10);
        } else {
            assert!(is_garbage(&result), "{descriptor:?}");
        }
        // After the good one, the tail announces more bytes than the ring holds.
        assert!(is_garbage(&transport.fill_buf(1, 1)), "{descriptor:?}");
    }
    for descriptors in [DESCRIPTORS_MAX as u64 + 1, u64::MAX] {
        let (mut transport, peer) = with_peer();
        peer.segment.control(Direction::Back).overwrite_descriptor(0, good, descriptors);
        assert!(is_garbage(&transport.try_recv(1, &mut [0; 100])));
    }
}

#[test]
fn invalid_regions_end_the_stream() {
    let region = Region::create(1, 10, PeerAccess::Read).unwrap();
    let other = Segment::create(CAPACITY).unwrap().1;
    let (mut twice, peer) = with_peer();
    offer(&peer, &region, RegionMessage { region: 1, evicted: 0 });
    offer(&peer, &region, RegionMessage { region: 1, evicted: 0 });
    assert_eq!(twice.arm(&interest(1, false)).unwrap(), Armed::Ready);
    assert!(is_garbage(&twice.try_recv(1, &mut [0])));
    let (mut none, peer) = with_peer();
    socket::send(&peer.socket, &RegionMessage { region: 1, evicted: 0 }.encode(), None).unwrap();
    assert_eq!(none.arm(&interest(1, false)).unwrap(), Armed::Ready);
    assert!(none.try_recv(1, &mut [0]).is_err());
    let (mut of_another_kind, peer) = with_peer();
    let message = RegionMessage { region: 1, evicted: 0 }.encode();
    socket::send(&peer.socket, &message, Some(other.as_fd())).unwrap();
    assert_eq!(of_another_kind.arm(&interest(1, false)).unwrap(), Armed::Ready);
    assert!(is_garbage(&of_another_kind.try_recv(1, &mut [0])));
    let (mut too_many, peer) = with_peer();
    let regions = crate::exporter::REGIONS_MAX + DESCRIPTORS_MAX;
    for id in 1..=regions as u64 + 1 {
        offer(&peer, &region, RegionMessage { region: id, evicted: 0 });
        let ready = too_many.arm(&interest(1, false)).unwrap() == Armed::Ready;
        assert_eq!(ready, id > regions as u64, "{id}");
    }
}
