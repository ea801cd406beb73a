//! Finds the ranks that a call waits for, and those that did not arrive before its deadline.

use std::time::Duration;

use comm_core::{Collective, Error};

use super::session::Session;
use crate::control::Announce;

impl Session {
    /// Returns the peers that the call is waiting for at present.
    pub(super) fn waiting_for(&self) -> Vec<usize> {
        let interest = self.executor.interest();
        let mut peers = [interest.recv(), interest.send()].concat();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Asks all peers for their current call, to distinguish stopped ranks from blocked ones. In a
    /// large group, asks those with which this rank is connected and `others`, and then those for
    /// which they wait. The answers arrive while the call continues.
    pub(super) fn ask_all(&mut self, others: &[usize]) {
        let sequence = self.history.last();
        if self.history.get(sequence).is_none() {
            return;
        }
        self.control.begin_asking(sequence);
        if self.control.is_complete() {
            self.group.peers().for_each(|peer| self.ask_once(peer));
            return;
        }
        let connected = self.control.connected();
        let others = others.iter().copied().take(Announce::WAITING_MAX);
        connected.into_iter().chain(others).for_each(|peer| self.ask_once(peer));
    }

    /// Asks a peer for its current call, unless it was asked already.
    pub(super) fn ask_once(&mut self, peer: usize) {
        let sequence = self.history.last();
        if let Some(call) = self.history.get(sequence)
            && self.control.mark_asked(peer)
        {
            self.ask(peer, sequence, call);
        }
    }

    /// Returns the error for a deadline that has passed, naming the ranks that did not arrive.
    pub(super) fn timeout(&mut self, after: Duration) -> Error {
        let waiting_for = self.waiting_for();
        let absent = self.absent(&waiting_for);
        let waiting_for = if absent.is_empty() { waiting_for } else { absent };
        Error::Timeout { waiting_for, after, during: self.during() }
    }

    /// Among the ranks that the call waits for directly or indirectly, returns those that are
    /// neither in the call nor blocked in another one. A barrier waits for every rank from which
    /// nothing was received; in a large group, most ranks send each other nothing.
    fn absent(&mut self, waiting_for: &[usize]) -> Vec<usize> {
        let sequence = self.history.last();
        let is_barrier = self.control.is_complete()
            && self.history.get(sequence).is_some_and(|call| call.collective.base() == Collective::Barrier);
        let mut missed = if is_barrier { self.without_sign_of(sequence) } else { Vec::new() };
        if !is_barrier || self.control.has_asked(sequence) {
            missed.extend_from_slice(waiting_for);
        }
        self.control.absent(sequence, &missed)
    }

    /// Returns the peers that have given no sign of having made this call, neither by a message of
    /// the call nor on the control channel.
    fn without_sign_of(&mut self, sequence: u64) -> Vec<usize> {
        self.group.peers().filter(|peer| !self.has_made(*peer, sequence)).collect()
    }

    fn has_made(&mut self, peer: usize, sequence: u64) -> bool {
        self.executor.has_seen(peer, sequence)
            || self.control.has_made(peer, sequence)
            // All messages before this call were received, so bytes in the stream belong to it or a
            // later one.
            || self.data.is_open(peer) && self.data.fill_buf(peer, 1).is_ok_and(|filled| !filled.is_empty())
    }
}
