//! Which ranks a call waits for, and which of them did not arrive before its deadline.

use std::time::Duration;

use comm_core::{Collective, Error, Transport};

use super::session::Session;

impl<T: Transport> Session<T> {
    /// The peers without which the call cannot go on now.
    pub(super) fn waiting_for(&self) -> Vec<usize> {
        let interest = self.executor.interest();
        let mut peers = [interest.recv(), interest.send()].concat();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Asks everybody where they are, so that a rank that stopped can be told from one that is blocked. The answers are
    /// heard while the call goes on.
    pub(super) fn ask_all(&mut self) {
        let sequence = self.history.last();
        let Some(call) = self.history.get(sequence).cloned() else { return };
        self.control.begin_to_ask(sequence);
        for peer in self.group.peers() {
            self.ask(peer, sequence, call.clone());
        }
    }

    /// The error for a deadline that has passed: it names the ranks that did not arrive.
    pub(super) fn timeout(&mut self, after: Duration) -> Error {
        let waiting_for = self.waiting_for();
        let absent = self.absent(&waiting_for);
        let waiting_for = if absent.is_empty() { waiting_for } else { absent };
        Error::Timeout { waiting_for, after, during: self.during() }
    }

    /// The ranks that are neither in the call nor blocked in another one, as far as the call waits for them. A barrier
    /// waits for each of which nothing was heard, through whomever.
    fn absent(&mut self, waiting_for: &[usize]) -> Vec<usize> {
        let sequence = self.history.last();
        let is_barrier =
            self.history.get(sequence).is_some_and(|call| call.collective.base() == Collective::Barrier);
        let mut missed = if is_barrier { self.not_heard_of(sequence) } else { Vec::new() };
        if !is_barrier || self.control.has_asked(sequence) {
            missed.extend_from_slice(waiting_for);
        }
        self.control.absent(sequence, &missed)
    }

    /// The peers of which nothing shows that they made this call: no message, and no word on the control channel.
    fn not_heard_of(&mut self, sequence: u64) -> Vec<usize> {
        self.group.peers().filter(|peer| !self.has_made(*peer, sequence)).collect()
    }

    fn has_made(&mut self, peer: usize, sequence: u64) -> bool {
        self.executor.has_seen(peer, sequence)
            || self.control.has_made(peer, sequence)
            // Everything before this call was received, so what lies in the stream belongs to it or a later one.
            || self.data.fill_buf(peer, 1).is_ok_and(|lent| !lent.is_empty())
    }
}
