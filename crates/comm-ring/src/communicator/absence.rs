//! Which ranks a call waits for, and which of them did not arrive before its deadline.

use std::time::Duration;

use comm_core::{Call, Collective, Error, Result, Transport};

use super::engine::Engine;

impl<T: Transport> Engine<T> {
    /// The peers without which the call cannot go on now.
    pub(super) fn waiting_for(&self) -> Vec<usize> {
        let interest = self.executor.interest();
        let mut peers = [interest.recv(), interest.send()].concat();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// The error for a deadline that has passed: it names the ranks that did not arrive. Or the cause that another rank
    /// found, if that is heard while this one still asks.
    pub(super) fn timeout(&mut self, after: Duration) -> Error {
        let sequence = self.history.last();
        let waiting_for = self.waiting_for();
        let barrier =
            self.history.get(sequence).filter(|call| call.collective == Collective::Barrier).cloned();
        let absent = match barrier {
            Some(call) => match self.absent_from_barrier(sequence, &call, after) {
                Ok(absent) => absent,
                Err(cause) => return cause,
            },
            None => self.control.absent(sequence, &waiting_for),
        };
        let waiting_for = if absent.is_empty() { waiting_for } else { absent };
        Error::Timeout { waiting_for, after, during: self.during() }
    }

    /// The ranks that a barrier lacks. It waits for all of them, through whomever: so each that has not been heard of
    /// is asked, as it may have arrived too late to announce that it waits.
    fn absent_from_barrier(&mut self, sequence: u64, call: &Call, timeout: Duration) -> Result<Vec<usize>> {
        let at_deadline = self.not_heard_of(sequence);
        for peer in &at_deadline {
            self.ask(*peer, sequence, call.clone());
        }
        // Not much longer than the caller wanted to wait.
        let at_most = self.config.diagnosis.min(timeout / 4);
        self.listen(at_most, |engine| Ok(engine.not_heard_of(sequence).is_empty()))?;
        let now = self.not_heard_of(sequence);
        Ok(if now.is_empty() { at_deadline } else { now })
    }

    /// The peers of which nothing shows that they made this call: no message, and no word on the control lane.
    fn not_heard_of(&mut self, sequence: u64) -> Vec<usize> {
        self.group.peers().filter(|peer| !self.has_made(*peer, sequence)).collect()
    }

    fn has_made(&mut self, peer: usize, sequence: u64) -> bool {
        self.executor.has_heard(peer, sequence)
            || self.control.has_made(peer, sequence)
            // Everything before this call was received, so what lies in the stream belongs to it or a later one.
            || self.data.lend(peer, 1).is_ok_and(|lent| !lent.is_empty())
    }
}
