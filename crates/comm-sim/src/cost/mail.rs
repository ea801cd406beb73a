//! Messages that were sent and not yet received.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use comm_core::Blocks;

/// A message on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    /// When its first byte can pass the receiver's port, in seconds.
    pub(super) ready: f64,
    /// What it carries.
    pub(super) blocks: Blocks,
    /// Its length.
    pub(super) bytes: usize,
}

/// All messages on their way, in order per pair of ranks, and the ranks that wait for one.
#[derive(Debug)]
pub(super) struct Mail {
    /// Messages and free places, in lists.
    places: Vec<(Message, u32)>,
    free: u32,
    queues: HashMap<u64, Queue, BuildHasherDefault<PairHasher>>,
    /// For whose message a rank waits, or nobody.
    awaited: Vec<u32>,
    /// Ranks that wait no longer.
    woken: VecDeque<u32>,
}

/// The messages of a pair of ranks: the first and the last place. There is none without messages.
#[derive(Debug, Clone, Copy)]
struct Queue {
    first: u32,
    last: u32,
}

const NONE: u32 = u32::MAX;

impl Mail {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            places: Vec::new(),
            free: NONE,
            queues: HashMap::default(),
            awaited: vec![NONE; ranks],
            woken: VecDeque::new(),
        }
    }

    pub(super) fn send(&mut self, from: usize, to: usize, message: Message) {
        let place = self.place(message);
        let queue = self.queues.entry(key(from, to)).or_insert(Queue { first: place, last: NONE });
        if queue.last != NONE {
            self.places[queue.last as usize].1 = place;
        }
        queue.last = place;
        if self.awaited[to] == from as u32 {
            self.awaited[to] = NONE;
            self.woken.push_back(to as u32);
        }
    }

    pub(super) fn receive(&mut self, from: usize, to: usize) -> Option<Message> {
        let key = key(from, to);
        let queue = self.queues.get_mut(&key)?;
        let place = queue.first;
        let (message, next) = self.places[place as usize];
        if next == NONE {
            self.queues.remove(&key);
        } else {
            queue.first = next;
        }
        self.places[place as usize].1 = self.free;
        self.free = place;
        Some(message)
    }

    fn place(&mut self, message: Message) -> u32 {
        if self.free == NONE {
            self.places.push((message, NONE));
            return (self.places.len() - 1) as u32;
        }
        let place = self.free;
        let slot = &mut self.places[place as usize];
        self.free = slot.1;
        *slot = (message, NONE);
        place
    }

    /// Notes that a rank can only go on with a message from this one.
    pub(super) fn wait(&mut self, rank: usize, from: usize) {
        self.awaited[rank] = from as u32;
    }

    /// For whose message a rank waits.
    pub(super) fn awaited(&self, rank: usize) -> Option<usize> {
        (self.awaited[rank] != NONE).then_some(self.awaited[rank] as usize)
    }

    /// The next rank whose message has come.
    pub(super) fn next_woken(&mut self) -> Option<usize> {
        self.woken.pop_front().map(|rank| rank as usize)
    }

    /// The first pair of ranks, as (from, to), with a message that was not received.
    pub(super) fn left(&self) -> Option<(usize, usize)> {
        self.queues.keys().min().map(|key| ((key >> 32) as usize, (key & u64::from(NONE)) as usize))
    }
}

/// Ranks are below 2^32 - 1: the machine refuses more.
const fn key(from: usize, to: usize) -> u64 {
    (from as u64) << 32 | to as u64
}

/// Spreads pairs of ranks. Multiplication by an odd constant, as in Knuth's multiplicative hashing; nobody chooses
/// keys so that they collide.
#[derive(Debug, Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: usize) -> Message {
        Message { ready: 0.0, blocks: Blocks::one(number), bytes: 0 }
    }

    #[test]
    fn messages_of_a_pair_keep_their_order_and_their_memory_is_used_again() {
        let mut mail = Mail::new(3);
        for round in 0..100 {
            for number in 0..4 {
                mail.send(0, 1, message(4 * round + number));
                mail.send(2, 1, message(number));
            }
            for number in 0..4 {
                assert_eq!(mail.receive(0, 1).map(|got| got.blocks.first), Some(4 * round + number));
                assert_eq!(mail.left(), Some(if number < 3 { (0, 1) } else { (2, 1) }));
            }
            assert!((0..4).all(|number| mail.receive(2, 1).map(|got| got.blocks.first) == Some(number)));
            assert!(mail.receive(0, 1).is_none() && mail.receive(1, 0).is_none());
        }
        assert_eq!((mail.places.len(), mail.left()), (8, None));
    }

    #[test]
    fn only_the_awaited_message_wakes() {
        let mut mail = Mail::new(3);
        mail.wait(1, 2);
        mail.send(0, 1, message(0));
        assert_eq!((mail.next_woken(), mail.awaited(1)), (None, Some(2)));
        mail.send(2, 1, message(0));
        assert_eq!((mail.next_woken(), mail.awaited(1)), (Some(1), None));
    }
}
