//! The watchdog of a communicator: a thread that, while calls are in flight, checks the device and
//! the control channel for failures that no other thread would notice.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{Error, Result};

use super::control::ControlChannel;
use super::engine::Engine;
use super::state::{PendingCall, State};
use crate::sync::lock;

/// The interval between checks while calls are in flight.
const WATCH: Duration = Duration::from_millis(5);

impl Engine {
    /// Runs the watchdog.
    pub(super) fn watch(&self) {
        let _unbound = self.device.bind();
        let mut state = lock(&self.state);
        while !state.closing {
            let is_idle = state.oldest().is_none();
            state = self.sleep(state, (!is_idle).then_some(WATCH));
            if state.handle.is_none() {
                continue;
            }
            let looked = state.look(self.group, &self.announced());
            let (due, sequence) = (state.due_announcement(), state.oldest().map(PendingCall::needs));
            drop(state);
            if let (Some(control), Some(due)) = (&self.control, due) {
                control.announce(&due);
            }
            // The control channel comes first, because an error of NCCL may be the consequence of a
            // failure that another rank reports.
            if let Err(error) = self.check_control(sequence.unwrap_or(0)).and(looked) {
                self.fail(error, None);
            }
            state = lock(&self.state);
        }
    }

    /// Reads the control channel, and returns an error if this rank cannot complete the collective
    /// of this number.
    pub(super) fn check_control(&self, sequence: u64) -> Result<()> {
        let Some(control) = &self.control else { return Ok(()) };
        loop {
            let polled = control.poll();
            // The calls are compared first: a rank that fails because of a mismatch announces its
            // call before its failure, and the mismatch is the better error.
            self.compare(control)?;
            if !polled.map_err(|error| self.lost(error))? {
                return control.check_failure(sequence);
            }
        }
    }

    /// Compares the calls that other ranks announced with the calls of this rank.
    fn compare(&self, control: &ControlChannel) -> Result<()> {
        let (state, announced) = (lock(&self.state), control.announced());
        let rank = self.group.rank();
        let mismatch =
            announced.iter().find_map(|(peer, said)| Some((*peer, state.compare(rank, *peer, said)?)));
        let Some((peer, (ours, error))) = mismatch else { return Ok(()) };
        // The other rank then finds the same mismatch, which explains more than a report that this
        // one failed.
        control.announce_to(peer, &ours);
        Err(error)
    }

    /// Adds to an error the call in which a peer was lost.
    fn lost(&self, error: Error) -> Error {
        let state = lock(&self.state);
        match (error, state.oldest()) {
            (Error::PeerLost { peer, loss, .. }, Some(call)) => {
                Error::PeerLost { peer, during: call.pending.during(call.sequence), loss }
            }
            (error, _) => error,
        }
    }

    /// Waits until the state changes, or for at most this time.
    fn sleep<'a>(&self, state: MutexGuard<'a, State>, at_most: Option<Duration>) -> MutexGuard<'a, State> {
        match at_most {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(time) => self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
        }
    }
}
