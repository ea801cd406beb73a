//! Messages that were sent but not yet received.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use comm_core::Blocks;

/// A message in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    /// The time at which its first byte can pass the receiver's port, in seconds.
    pub(super) ready: f64,
    /// The blocks that it carries.
    pub(super) blocks: Blocks,
    /// Its length.
    pub(super) bytes: usize,
}

/// All messages in flight, in order for each pair of ranks, and the ranks that wait for a message.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// Linked lists of messages and of free entries.
    places: Vec<(Message, u32)>,
    free: u32,
    queues: HashMap<u64, Queue, BuildHasherDefault<PairHasher>>,
    /// The rank from which each rank awaits a message, or [`NONE`].
    waiting_for: Vec<u32>,
    /// Ranks whose awaited message has arrived.
    woken: VecDeque<u32>,
}

/// The messages of a pair of ranks: the first and the last entry. Pairs without messages have no
/// queue.
#[derive(Debug, Clone, Copy)]
struct Queue {
    first: u32,
    last: u32,
}

const NONE: u32 = u32::MAX;

impl Mailbox {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            places: Vec::new(),
            free: NONE,
            queues: HashMap::default(),
            waiting_for: vec![NONE; ranks],
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
        if self.waiting_for[to] == from as u32 {
            self.waiting_for[to] = NONE;
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

    /// Records that a rank can continue only after a message from another.
    pub(super) fn wait(&mut self, rank: usize, from: usize) {
        self.waiting_for[rank] = from as u32;
    }

    /// Returns the rank from which a rank awaits a message.
    pub(super) fn waiting_for(&self, rank: usize) -> Option<usize> {
        (self.waiting_for[rank] != NONE).then_some(self.waiting_for[rank] as usize)
    }

    /// Returns the next rank whose awaited message has arrived.
    pub(super) fn next_woken(&mut self) -> Option<usize> {
        self.woken.pop_front().map(|rank| rank as usize)
    }

    /// Returns the first pair of ranks, as (from, to), with an unreceived message.
    pub(super) fn left(&self) -> Option<(usize, usize)> {
        self.queues.keys().min().map(|key| ((key >> 32) as usize, (key & u64::from(NONE)) as usize))
    }
}

/// Packs a pair into one key. Ranks are below 2^32 - 1, because larger worlds are rejected.
const fn key(from: usize, to: usize) -> u64 {
    (from as u64) << 32 | to as u64
}

/// Hashes pairs of ranks by multiplication with an odd constant, as in Knuth's multiplicative
/// hashing. Keys are not chosen by an adversary.
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
        let mut mail = Mailbox::new(3);
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
        let mut mail = Mailbox::new(3);
        mail.wait(1, 2);
        mail.send(0, 1, message(0));
        assert_eq!((mail.next_woken(), mail.waiting_for(1)), (None, Some(2)));
        mail.send(2, 1, message(0));
        assert_eq!((mail.next_woken(), mail.waiting_for(1)), (Some(1), None));
    }
}
