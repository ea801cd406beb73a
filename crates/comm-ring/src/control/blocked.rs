//! Finds the ranks that are blocked in calls, by their announcements, and those that are absent.

use super::{Announce, Control};

impl Control {
    /// Begins to wait for the answers of peers to a question that is asked in this call.
    pub(crate) fn begin_asking(&mut self, sequence: u64) {
        self.asked_in = Some(sequence);
        self.peers.change_all(|peer| (peer.asked, peer.answered) = (false, false));
    }

    /// Records that a peer is being asked. Returns whether it was not asked before.
    pub(crate) fn mark_asked(&mut self, peer: usize) -> bool {
        peer != self.group.rank() && !std::mem::replace(&mut self.peers[peer].asked, true)
    }

    /// Returns whether peers were asked for their state in this call.
    pub(crate) fn has_asked(&self, sequence: u64) -> bool {
        self.asked_in == Some(sequence)
    }

    /// Returns whether a rank's last announcement still holds in call `sequence`. A rank that
    /// answers is blocked in the call that it names, even if that is an earlier one; a rank that
    /// does not answer may have stopped since.
    fn is_blocked(&self, rank: usize, announced: &Announce, sequence: u64) -> bool {
        if self.has_asked(sequence) { self.peers[rank].answered } else { announced.sequence >= sequence }
    }

    /// Returns the members that call `sequence` is waiting for: those that can be reached from
    /// `waiting_for` through the announcements of blocked ranks, and are not known to be blocked
    /// themselves.
    pub(crate) fn absent(&self, sequence: u64, waiting_for: &[usize]) -> Vec<usize> {
        let mut seen = vec![false; self.group.size()];
        seen[self.group.rank()] = true;
        let mut open: Vec<usize> = waiting_for.to_vec();
        let mut absent = Vec::new();
        while let Some(rank) = open.pop() {
            if rank >= seen.len() || std::mem::replace(&mut seen[rank], true) {
                continue;
            }
            match &self.peers[rank].announced {
                Some(announced) if self.is_blocked(rank, announced, sequence) => {
                    open.extend_from_slice(&announced.waiting_for);
                }
                _ => absent.push(rank),
            }
        }
        absent.sort_unstable();
        absent
    }
}
