//! The peers that were lately seen on the processor of this thread.

use std::cell::Cell;

/// The number of questions for which an answer holds. To look each time would take cache lines from
/// the peers in every turn.
const QUESTIONS: u32 = 64;
/// The maximum number of neighbours for which ranks on other processors probably run now: if more
/// take turns on each processor, most of them do not. Without it, short reductions of eight ranks
/// on two processors took longer (`commctl perf all_reduce -n 8`).
const NEIGHBOURS_MAX: usize = 1;

/// The peers that were lately seen on the processor of this thread, or nowhere.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// By rank.
    are_neighbours: Box<[Cell<bool>]>,
    count: Cell<usize>,
    questions_left: Cell<u32>,
}

impl Neighbours {
    pub(super) fn new(ranks: usize) -> Self {
        let are_neighbours = (0..ranks).map(|_| Cell::new(true)).collect();
        Self { are_neighbours, count: Cell::new(ranks), questions_left: Cell::new(0) }
    }

    /// Counts a question, and returns whether it is time to look where the peers are.
    pub(super) fn is_look_due(&self) -> bool {
        let left = self.questions_left.get();
        self.questions_left.set(left.checked_sub(1).unwrap_or(QUESTIONS));
        left == 0
    }

    /// Records for each rank whether it is a peer on the processor of this thread.
    pub(super) fn record(&self, are_here: impl IntoIterator<Item = bool>) {
        let mut count = 0;
        for (is_neighbour, is_here) in self.are_neighbours.iter().zip(are_here) {
            is_neighbour.set(is_here);
            count += usize::from(is_here);
        }
        self.count.set(count);
    }

    /// Returns whether all of these peers probably run now, beside this thread.
    pub(super) fn run_now(&self, peers: &[usize]) -> bool {
        let is_neighbour = |peer: &usize| self.are_neighbours.get(*peer).is_none_or(Cell::get);
        self.count.get() <= NEIGHBOURS_MAX && !peers.iter().any(is_neighbour)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_run_now_if_they_and_most_others_are_on_other_processors() {
        let neighbours = Neighbours::new(4);
        assert!(!neighbours.run_now(&[1]), "nothing is known");
        neighbours.record([false, false, true, false]);
        assert!(neighbours.run_now(&[1, 3]) && neighbours.run_now(&[]));
        assert!(!neighbours.run_now(&[1, 2]) && !neighbours.run_now(&[4]));
        neighbours.record([false, false, true, true]);
        assert!(!neighbours.run_now(&[1]), "three take turns here");
    }

    #[test]
    fn an_answer_holds_for_some_questions() {
        let neighbours = Neighbours::new(1);
        for _ in 0..3 {
            assert!(neighbours.is_look_due());
            assert!((0..QUESTIONS).all(|_| !neighbours.is_look_due()));
        }
    }
}
