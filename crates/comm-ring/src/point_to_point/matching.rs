//! Which message goes to which receive: the two queues, of receives that wait and of messages that nobody expected.

use std::collections::{BTreeSet, HashMap};

use comm_core::{Source, TagMatch};

/// What a receive takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pattern {
    pub(crate) from: Source,
    pub(crate) tag: TagMatch,
}

/// Where a message comes from, and its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Label {
    pub(crate) source: usize,
    pub(crate) tag: u64,
}

impl Label {
    /// The four patterns that match it.
    fn patterns(self) -> [Pattern; 4] {
        let (from, tag) = (Source::Rank(self.source), TagMatch::Is(self.tag));
        [
            Pattern { from, tag },
            Pattern { from, tag: TagMatch::Any },
            Pattern { from: Source::Any, tag },
            Pattern { from: Source::Any, tag: TagMatch::Any },
        ]
    }
}

#[cfg(test)]
impl Pattern {
    fn matches(self, label: Label) -> bool {
        label.patterns().contains(&self)
    }
}

/// The receives that wait and the messages that wait, each known by a number that grows with time.
///
/// A message is filed under each of the four patterns that match it, a receive under its own. So the oldest of either
/// that matches is found without looking at those that do not, however many there are.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    receives: HashMap<Pattern, BTreeSet<u64>>,
    messages: HashMap<Pattern, BTreeSet<u64>>,
}

impl Matching {
    /// Files a receive.
    pub(crate) fn add_receive(&mut self, pattern: Pattern, receive: u64) {
        self.receives.entry(pattern).or_default().insert(receive);
    }

    /// Takes a receive out, and tells whether it was there.
    pub(crate) fn remove_receive(&mut self, pattern: Pattern, receive: u64) -> bool {
        remove(&mut self.receives, pattern, receive)
    }

    /// The oldest receive that takes such a message, and its pattern.
    pub(crate) fn receive_for(&self, label: Label) -> Option<(u64, Pattern)> {
        let oldest = |pattern| Some((*self.receives.get(&pattern)?.first()?, pattern));
        label.patterns().into_iter().filter_map(oldest).min_by_key(|(receive, _)| *receive)
    }

    /// Files a message.
    pub(crate) fn add_message(&mut self, label: Label, message: u64) {
        for pattern in label.patterns() {
            self.messages.entry(pattern).or_default().insert(message);
        }
    }

    /// Takes a message out, and tells whether it was there.
    pub(crate) fn remove_message(&mut self, label: Label, message: u64) -> bool {
        label.patterns().into_iter().fold(false, |_, pattern| remove(&mut self.messages, pattern, message))
    }

    /// The oldest message that a receive takes.
    pub(crate) fn message_for(&self, pattern: Pattern) -> Option<u64> {
        self.messages.get(&pattern)?.first().copied()
    }
}

/// An empty set is dropped, since tags may be used once and never again.
fn remove(sets: &mut HashMap<Pattern, BTreeSet<u64>>, pattern: Pattern, number: u64) -> bool {
    let Some(set) = sets.get_mut(&pattern) else { return false };
    let removed = set.remove(&number);
    if set.is_empty() {
        sets.remove(&pattern);
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(source: usize, tag: u64) -> Label {
        Label { source, tag }
    }

    fn pattern(from: impl Into<Source>, tag: impl Into<TagMatch>) -> Pattern {
        Pattern { from: from.into(), tag: tag.into() }
    }

    #[test]
    fn the_oldest_receive_that_matches_is_found_whatever_its_kind() {
        let mut matching = Matching::default();
        matching.add_receive(pattern(1, 5), 10);
        matching.add_receive(pattern(Source::Any, 5), 3);
        matching.add_receive(pattern(1, TagMatch::Any), 7);
        let found = |matching: &Matching| matching.receive_for(label(1, 5)).map(|(receive, _)| receive);
        assert_eq!(found(&matching), Some(3));
        assert!(matching.remove_receive(pattern(Source::Any, 5), 3));
        assert_eq!(found(&matching), Some(7));
        assert_eq!(matching.receive_for(label(2, 5)), None);
        assert!(!matching.remove_receive(pattern(Source::Any, 5), 3));
    }

    #[test]
    fn nothing_is_left_behind() {
        let mut matching = Matching::default();
        for tag in 0..100 {
            matching.add_message(label(0, tag), tag);
            matching.add_receive(pattern(1, tag), tag);
        }
        for tag in 0..100 {
            assert!(matching.remove_message(label(0, tag), tag));
            assert!(matching.remove_receive(pattern(1, tag), tag));
        }
        assert!(matching.messages.is_empty() && matching.receives.is_empty());
    }

    /// Two lists in order of time.
    #[derive(Default)]
    struct Model {
        receives: Vec<(u64, Pattern)>,
        messages: Vec<(u64, Label)>,
    }

    impl Model {
        /// A receive comes: it takes the first message that it matches, or waits.
        fn receive(&mut self, number: u64, pattern: Pattern) -> Option<(u64, Label)> {
            let at = self.messages.iter().position(|(_, label)| pattern.matches(*label));
            let taken = at.map(|at| self.messages.remove(at));
            if taken.is_none() {
                self.receives.push((number, pattern));
            }
            taken
        }

        /// A message comes: it goes to the first receive that matches it, or waits.
        fn message(&mut self, number: u64, label: Label) -> Option<(u64, Pattern)> {
            let at = self.receives.iter().position(|(_, pattern)| pattern.matches(label));
            let taken = at.map(|at| self.receives.remove(at));
            if taken.is_none() {
                self.messages.push((number, label));
            }
            taken
        }
    }

    /// One random event in both, which must agree.
    fn step(matching: &mut Matching, model: &mut Model, random: &mut fastrand::Rng, number: u64) {
        let label = label(random.usize(..3), random.u64(..3));
        match random.u8(..10) {
            0 if !model.receives.is_empty() => {
                let (receive, pattern) = model.receives.remove(random.usize(..model.receives.len()));
                assert!(matching.remove_receive(pattern, receive));
            }
            1..=5 => {
                let pattern = label.patterns()[random.usize(..4)];
                let found = matching.message_for(pattern);
                let expected = model.receive(number, pattern);
                assert_eq!(found, expected.map(|(message, _)| message));
                match expected {
                    Some((message, label)) => assert!(matching.remove_message(label, message)),
                    None => matching.add_receive(pattern, number),
                }
            }
            _ => {
                let found = matching.receive_for(label);
                assert_eq!(found, model.message(number, label));
                match found {
                    Some((receive, pattern)) => assert!(matching.remove_receive(pattern, receive)),
                    None => matching.add_message(label, number),
                }
            }
        }
    }

    #[test]
    fn it_matches_as_two_lists_do() {
        for seed in 0..500 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut matching, mut model) = (Matching::default(), Model::default());
            (0..300).for_each(|number| step(&mut matching, &mut model, &mut random, number));
        }
    }
}
