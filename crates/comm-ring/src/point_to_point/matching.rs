//! Message matching with two queues: posted receives and unexpected messages.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, VecDeque};

use comm_core::{Source, TagMatch};
use rustc_hash::FxHashMap;

/// The source and tag that a receive matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MatchKey {
    pub(crate) from: Source,
    pub(crate) tag: TagMatch,
}

/// The source and tag of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Envelope {
    pub(crate) source: usize,
    pub(crate) tag: u64,
}

impl Envelope {
    /// Returns the four keys that match it.
    fn match_keys(self) -> [MatchKey; 4] {
        let (from, tag) = (Source::Rank(self.source), TagMatch::Is(self.tag));
        [
            MatchKey { from, tag },
            MatchKey { from, tag: TagMatch::Any },
            MatchKey { from: Source::Any, tag },
            MatchKey { from: Source::Any, tag: TagMatch::Any },
        ]
    }
}

impl MatchKey {
    fn is_wildcard(self) -> bool {
        self.from == Source::Any || self.tag == TagMatch::Any
    }
}

#[cfg(test)]
impl MatchKey {
    fn matches(self, envelope: Envelope) -> bool {
        envelope.match_keys().contains(&self)
    }
}

/// Posted receives and unexpected messages, each identified by a number that grows with time.
///
/// A message is stored under each of the four keys that match it, a receive under its own. The
/// oldest match is therefore found without scanning entries that do not match.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    /// The oldest first.
    receives: FxHashMap<MatchKey, VecDeque<u64>>,
    /// The number of receives that match any source or any tag.
    wildcards: usize,
    messages: FxHashMap<MatchKey, BTreeSet<u64>>,
}

impl Matching {
    /// Adds a receive, which is younger than all others.
    pub(crate) fn add_receive(&mut self, key: MatchKey, receive: u64) {
        self.receives.entry(key).or_default().push_back(receive);
        self.wildcards += usize::from(key.is_wildcard());
    }

    /// Removes a receive, and returns whether it was present.
    pub(crate) fn remove_receive(&mut self, key: MatchKey, receive: u64) -> bool {
        let Entry::Occupied(mut receives) = self.receives.entry(key) else { return false };
        let Ok(at) = receives.get().binary_search(&receive) else { return false };
        receives.get_mut().remove(at);
        // Tags may be used once and never again.
        if receives.get().is_empty() {
            receives.remove();
        }
        self.wildcards -= usize::from(key.is_wildcard());
        true
    }

    /// Removes and returns the oldest receive that matches a message with this envelope.
    pub(crate) fn take_receive_for(&mut self, envelope: Envelope) -> Option<u64> {
        let [own, ..] = envelope.match_keys();
        let key = if self.wildcards > 0 { self.oldest_key(envelope)? } else { own };
        let Entry::Occupied(mut receives) = self.receives.entry(key) else { return None };
        let oldest = receives.get_mut().pop_front();
        // Tags may be used once and never again.
        if receives.get().is_empty() {
            receives.remove();
        }
        self.wildcards -= usize::from(key.is_wildcard());
        oldest
    }

    /// Returns the key of the oldest receive that matches a message with this envelope.
    fn oldest_key(&self, envelope: Envelope) -> Option<MatchKey> {
        let oldest = |key| Some((*self.receives.get(&key)?.front()?, key));
        let (_, key) =
            envelope.match_keys().into_iter().filter_map(oldest).min_by_key(|(receive, _)| *receive)?;
        Some(key)
    }

    /// Adds a message.
    pub(crate) fn add_message(&mut self, envelope: Envelope, message: u64) {
        for key in envelope.match_keys() {
            self.messages.entry(key).or_default().insert(message);
        }
    }

    /// Removes a message, and returns whether it was present.
    pub(crate) fn remove_message(&mut self, envelope: Envelope, message: u64) -> bool {
        envelope.match_keys().into_iter().fold(false, |_, key| remove(&mut self.messages, key, message))
    }

    /// Returns the oldest message that a receive matches.
    pub(crate) fn message_for(&self, key: MatchKey) -> Option<u64> {
        self.messages.get(&key)?.first().copied()
    }
}

/// Removes a number from a set. Drops an empty set, because tags may be used once and never again.
fn remove(sets: &mut FxHashMap<MatchKey, BTreeSet<u64>>, key: MatchKey, number: u64) -> bool {
    let Some(set) = sets.get_mut(&key) else { return false };
    let removed = set.remove(&number);
    if set.is_empty() {
        sets.remove(&key);
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(source: usize, tag: u64) -> Envelope {
        Envelope { source, tag }
    }

    fn key(from: impl Into<Source>, tag: impl Into<TagMatch>) -> MatchKey {
        MatchKey { from: from.into(), tag: tag.into() }
    }

    #[test]
    fn the_oldest_receive_that_matches_is_found_whatever_its_kind() {
        let mut matching = Matching::default();
        matching.add_receive(key(1, 5), 10);
        matching.add_receive(key(Source::Any, 5), 3);
        matching.add_receive(key(1, TagMatch::Any), 7);
        assert_eq!(matching.take_receive_for(envelope(2, 5)), Some(3));
        assert_eq!(matching.take_receive_for(envelope(2, 5)), None);
        assert_eq!(matching.take_receive_for(envelope(1, 5)), Some(7));
        assert!(!matching.remove_receive(key(1, TagMatch::Any), 7));
        assert_eq!(matching.take_receive_for(envelope(1, 5)), Some(10));
        assert_eq!(matching.take_receive_for(envelope(1, 5)), None);
        assert!(matching.receives.is_empty() && matching.wildcards == 0);
    }

    #[test]
    fn removing_all_entries_leaves_no_sets() {
        let mut matching = Matching::default();
        for tag in 0..100 {
            matching.add_message(envelope(0, tag), tag);
            matching.add_receive(key(1, tag), tag);
        }
        for tag in 0..100 {
            assert!(matching.remove_message(envelope(0, tag), tag));
            assert!(matching.remove_receive(key(1, tag), tag));
        }
        assert!(matching.messages.is_empty() && matching.receives.is_empty());
    }

    /// The reference implementation: two lists in chronological order.
    #[derive(Default)]
    struct Model {
        receives: Vec<(u64, MatchKey)>,
        messages: Vec<(u64, Envelope)>,
    }

    impl Model {
        /// Matches a receive with the first message, or adds it.
        fn receive(&mut self, number: u64, key: MatchKey) -> Option<(u64, Envelope)> {
            let at = self.messages.iter().position(|(_, envelope)| key.matches(*envelope));
            let taken = at.map(|at| self.messages.remove(at));
            if taken.is_none() {
                self.receives.push((number, key));
            }
            taken
        }

        /// Matches a message with the first receive, or adds it.
        fn message(&mut self, number: u64, envelope: Envelope) -> Option<u64> {
            let at = self.receives.iter().position(|(_, key)| key.matches(envelope));
            let taken = at.map(|at| self.receives.remove(at).0);
            if taken.is_none() {
                self.messages.push((number, envelope));
            }
            taken
        }
    }

    /// Applies one random event to both, which must agree.
    fn step(matching: &mut Matching, model: &mut Model, random: &mut fastrand::Rng, number: u64) {
        let envelope = envelope(random.usize(..3), random.u64(..3));
        match random.u8(..10) {
            0 if !model.receives.is_empty() => {
                let (receive, key) = model.receives.remove(random.usize(..model.receives.len()));
                assert!(matching.remove_receive(key, receive));
            }
            1..=5 => {
                let key = envelope.match_keys()[random.usize(..4)];
                let found = matching.message_for(key);
                let expected = model.receive(number, key);
                assert_eq!(found, expected.map(|(message, _)| message));
                match expected {
                    Some((message, envelope)) => assert!(matching.remove_message(envelope, message)),
                    None => matching.add_receive(key, number),
                }
            }
            _ => {
                let found = matching.take_receive_for(envelope);
                assert_eq!(found, model.message(number, envelope));
                if found.is_none() {
                    matching.add_message(envelope, number);
                }
            }
        }
    }

    #[test]
    fn matching_agrees_with_two_lists() {
        for seed in 0..500 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut matching, mut model) = (Matching::default(), Model::default());
            (0..300).for_each(|number| step(&mut matching, &mut model, &mut random, number));
        }
    }
}
