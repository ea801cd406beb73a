//! Memory like any other that the receiver reads where it lies: when it does, until when, and what a broken or hostile peer can
//! do with addresses.

use super::*;
use crate::loans::{ANYWHERE, Loan, SHOWN_BYTES_MAX, SHOWN_MAX};
use crate::regions::Regions;

/// The smallest piece that is shown, less than a ring holds.
const SHOWN_MIN: usize = 1000;
/// More than a ring holds.
const LARGE: usize = 3 * CAPACITY + 5;

/// Ranks 0 and 1, of which either shows to the other what it exposes. Nothing else is lent.
fn pair() -> [SharedMemoryTransport; 2] {
    let regions = Arc::<Regions>::default();
    let lending = Lending { regions, bytes_min: usize::MAX, shown_min: SHOWN_MIN };
    transports(connections(), &lending)
}

fn transports([near, far]: [Connection; 2], lending: &Lending) -> [SharedMemoryTransport; 2] {
    [transport(0, near, Some(lending)), transport(1, far, Some(lending))]
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn send(transport: &mut SharedMemoryTransport, bytes: &[u8]) -> usize {
    transport.try_send(1, &[IoSlice::new(bytes)]).unwrap()
}

#[test]
fn what_is_exposed_is_read_where_it_lies_and_released_when_it_was_read() {
    let [mut near, mut far] = pair();
    let mut memory = pattern(LARGE);
    near.expose(&[&memory]);
    assert_eq!(near.try_send(1, &[IoSlice::new(b"head"), IoSlice::new(&memory)]).unwrap(), LARGE + 4);
    assert_eq!(near.released(1), 4);
    memory.fill(255);
    let mut into = vec![0; LARGE + 3];
    assert_eq!(far.try_recv(0, &mut into).unwrap(), LARGE + 3);
    assert_eq!(&into[..4], b"head");
    assert!(into[4..].iter().all(|byte| *byte == 255), "it was copied when it was sent");
    assert_eq!(near.released(1), 4, "a byte is not read");
    assert_eq!(far.lend(0, 100).unwrap().len(), 1);
    far.consume(0, 1).unwrap();
    assert_eq!(near.released(1), LARGE as u64 + 4);
}

#[test]
fn small_pieces_and_what_is_not_exposed_are_copied() {
    let [mut near, _far] = pair();
    let memory = pattern(SHOWN_MIN);
    near.expose(&[&memory]);
    assert_eq!(send(&mut near, &memory[1..]), SHOWN_MIN - 1);
    assert_eq!(near.released(1), SHOWN_MIN as u64 - 1);
    assert_eq!(send(&mut near, &pattern(SHOWN_MIN)), SHOWN_MIN);
    assert_eq!(near.released(1), 2 * SHOWN_MIN as u64 - 1);
}

#[test]
fn memory_that_nobody_else_can_read_is_copied() {
    let [mut near, mut far] = pair();
    let Some(page) = crate::remote::secret() else { return };
    near.expose(&[page]);
    assert_eq!(send(&mut near, page), CAPACITY);
    assert_eq!(near.released(1), CAPACITY as u64);
    assert_eq!(far.try_recv(0, &mut [0; CAPACITY]).unwrap(), CAPACITY);
}

#[test]
fn nothing_is_shown_to_who_cannot_read_it() {
    let [near, far] = connections();
    let lending = Lending { regions: Arc::default(), bytes_min: usize::MAX, shown_min: SHOWN_MIN };
    // Neither does this side look whether it can, nor is the other told.
    let (mut near, mut far) = (transport(0, near, Some(&lending)), transport(1, far, None));
    let memory = pattern(LARGE);
    near.expose(&[&memory]);
    assert_eq!(send(&mut near, &memory), CAPACITY);
    assert_eq!(near.released(1), CAPACITY as u64);
    assert_eq!(far.try_recv(0, &mut vec![0; LARGE]).unwrap(), CAPACITY);
}

/// A few parts go at once, then none until one was read.
#[test]
fn large_pieces_are_shown_in_parts_of_which_a_few_are_out() {
    let [mut near, mut far] = pair();
    let memory = pattern(10 * SHOWN_BYTES_MAX);
    near.expose(&[&memory]);
    let mut sent = 0;
    for _ in 0..SHOWN_MAX {
        assert_eq!(send(&mut near, &memory[sent..]), SHOWN_BYTES_MAX);
        sent += SHOWN_BYTES_MAX;
    }
    assert_eq!(send(&mut near, &memory[sent..]), 0);
    let mut interest = Interest::default();
    interest.add_send(1);
    while near.arm(&interest).unwrap() == Armed::Ready {}
    let mut into = vec![0; SHOWN_BYTES_MAX];
    assert_eq!(far.try_recv(0, &mut into).unwrap(), SHOWN_BYTES_MAX);
    let mut ready = [rustix::event::PollFd::new(&near.epoll, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut ready, Some(&Timespec::default())).unwrap(), 1, "nobody rang");
    assert_eq!(near.arm(&interest).unwrap(), Armed::Ready);
    assert_eq!(send(&mut near, &memory[sent..]), SHOWN_BYTES_MAX);
    assert_eq!(near.released(1), SHOWN_BYTES_MAX as u64);
}

/// Bytes keep their order and their values however they go, and however they are received.
#[test]
fn the_stream_is_what_was_sent_whatever_goes_how() {
    for seed in 0..200 {
        let [mut near, mut far] = pair();
        let mut random = fastrand::Rng::with_seed(seed);
        let stream: Vec<u8> = (0..300_000).map(|_| random.u8(..)).collect();
        let (mut sent, mut received) = (0, 0);
        while received < stream.len() {
            let memory = [&stream[..]];
            near.expose(&memory[..usize::from(random.u8(..4) > 0)]);
            let len = random.usize(..100_000) >> random.u32(..14);
            let (first, second) = stream[sent..].split_at(len.min(stream.len() - sent));
            let second = &second[..second.len().min(random.usize(..2) * 5000)];
            sent += near.try_send(1, &[IoSlice::new(first), IoSlice::new(second)]).unwrap();
            let mut into = vec![0; 1 + (random.usize(..100_000) >> random.u32(..17))];
            let moved = if random.bool() {
                far.try_recv(0, &mut into).unwrap()
            } else {
                let lent = far.lend(0, into.len()).unwrap().copy_to(&mut into);
                let there = sent - received;
                assert!(lent >= there.min(into.len()).min(8), "{lent} of {there} are no element");
                let used = random.usize(..=lent);
                far.consume(0, used).unwrap();
                used
            };
            assert!(into[..moved] == stream[received..received + moved], "seed {seed}, byte {received}");
            received += moved;
        }
        assert_eq!(near.released(1), stream.len() as u64);
    }
}

/// Memory that is taken back never counts as received, not even if it was read already.
#[test]
fn what_is_taken_back_does_not_count() {
    let [mut near, mut far] = pair();
    let memory = pattern(LARGE);
    near.expose(&[&memory]);
    send(&mut near, &memory);
    let lent = far.lend(0, LARGE).unwrap().len();
    assert_eq!(lent, LARGE);
    near.revoke();
    assert_eq!(near.released(1), LARGE as u64, "the memory is its owner's again");
    assert!(taken_back(&far.consume(0, lent)));
    assert!(taken_back(&far.try_recv(0, &mut [0; 8])));
    assert!(taken_back(&near.try_send(1, &[IoSlice::new(b"more")])));

    let [mut near, mut far] = pair();
    let memory = crate::region::Region::create(1, LARGE).unwrap();
    let allocation = memory.hand_out(LARGE, Box::new(()));
    near.expose(&[allocation.bytes()]);
    assert_eq!(send(&mut near, allocation.bytes()), LARGE);
    near.revoke();
    drop((allocation, memory));
    assert!(taken_back(&far.try_recv(0, &mut [0; LARGE])), "memory that is not there any more");
}

fn garbage_of_rank_0<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::PeerLost { peer: 0, loss: Loss::Garbage(_), .. }))
}

#[test]
fn addresses_where_nothing_is_end_the_stream() {
    let here = pattern(100);
    let good = Loan { start: 0, len: 100, region: ANYWHERE, offset: here.as_ptr().addr() as u64 };
    let bad = [0, 1, 4096, u64::MAX, u64::MAX - 50, 1 << 63].map(|offset| Loan { offset, ..good });
    for loan in [good].into_iter().chain(bad) {
        for lends in [false, true] {
            let [near, far] = connections();
            let lending = Lending { regions: Arc::default(), bytes_min: usize::MAX, shown_min: SHOWN_MIN };
            let mut far = transport(1, far, Some(&lending));
            let control = near.segment.control(Direction::Out);
            control.scribble_loan(0, loan, 1);
            control.scribble(Some(100), None);
            let mut into = [0; 100];
            let result = if lends {
                far.lend(0, 100).map(|lent| lent.copy_to(&mut into))
            } else {
                far.try_recv(0, &mut into)
            };
            if loan == good {
                assert_eq!((result.unwrap(), &into[..]), (100, &here[..]));
            } else {
                assert!(garbage_of_rank_0(&result), "{loan:?}: {result:?}");
                assert!(garbage_of_rank_0(&far.try_recv(0, &mut into)));
            }
        }
    }
}

#[test]
fn an_address_from_who_was_not_to_give_one_ends_the_stream() {
    let here = pattern(100);
    let (mut transport, peer) = with_peer();
    let control = peer.segment.control(Direction::Back);
    let offset = here.as_ptr().addr() as u64;
    control.scribble_loan(0, Loan { start: 0, len: 100, region: ANYWHERE, offset }, 1);
    control.scribble(Some(100), None);
    assert!(garbage(&transport.try_recv(1, &mut [0; 100])));
}
