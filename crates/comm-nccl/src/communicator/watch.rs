//! The two threads of a communicator: the watchdog checks the device and must never be late; the
//! courier exchanges messages through the store, which may be slow.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::Result;

use super::board::{Announcement, Board};
use super::engine::Engine;
use super::state::{PendingCall, State};
use crate::sync::lock;

/// The interval of the watchdog while calls are on the device.
const WATCH: Duration = Duration::from_millis(5);

/// The longest time until a rank announces that it waits, and the shortest interval of reading the
/// announcements of others.
const ANNOUNCE: Duration = Duration::from_secs(1);
/// The same as a fraction of the call's timeout, which may be short.
const ANNOUNCE_PART: u32 = 4;
/// The interval at which a rank checks whether to announce its call.
const TICK: Duration = Duration::from_millis(50);
/// The interval grows with the group, so that the store can serve all ranks.
const PER_RANK: Duration = Duration::from_millis(10);

impl Engine {
    /// Runs the watchdog, which notices failures that no thread waits for.
    pub(super) fn watch(&self) {
        let _unbound = self.device.bind();
        let mut state = lock(&self.state);
        while !state.closing {
            let idle = state.enqueued.is_empty();
            state = self.sleep(state, (!idle).then_some(WATCH));
            if let Err(error) = state.look(self.group) {
                drop(state);
                self.fail(error, None);
                state = lock(&self.state);
            }
        }
    }

    /// Runs the courier. If the store fails, the courier ends and the communicator goes on with its
    /// deadlines; a store that has gone does not come back with its contents.
    pub(super) fn run_courier(&self, board: &Board) {
        if let Err(error) = self.exchange_news(board) {
            tracing::warn!(%error, "the ranks of a group cannot tell each other of failures any more");
        }
    }

    /// Announces the call in which this rank has waited for long, or its failure, and reads those
    /// of others.
    fn exchange_news(&self, board: &Board) -> Result<()> {
        let mut told = 0;
        let mut state = lock(&self.state);
        loop {
            if let Some(cause) = state.failed.take() {
                drop(state);
                board.give_up(&cause.to_string())?;
                state = lock(&self.state);
            }
            if state.closing {
                let in_order = self.health.failure.cause().is_none_or(|_| state.closed);
                drop(state);
                // After a failure, other ranks still read this rank's announcement.
                return if told > 0 && in_order { board.leave() } else { Ok(()) };
            }
            let Some(oldest) = state.oldest().cloned() else {
                state = self.sleep(state, None);
                continue;
            };
            if !state.pending_calls().any(|call| call.deadline.began.elapsed() >= patience(call)) {
                // A call with a shorter timeout may start meanwhile.
                state = self.sleep(state, Some(TICK));
                continue;
            }
            let shortest = state.pending_calls().map(patience).min().unwrap_or(ANNOUNCE);
            drop(state);
            let announcement = oldest.announcement().filter(|announcement| announcement.sequence > told);
            if let Some(announcement) = &announcement {
                told = announcement.sequence;
                board.announce(announcement)?;
            }
            self.hear(board)?;
            let ranks = u32::try_from(self.group.size()).unwrap_or(u32::MAX);
            state = self.sleep(lock(&self.state), Some(shortest.max(PER_RANK.saturating_mul(ranks))));
        }
    }

    /// Reads the messages of others, and fails if this rank cannot go on.
    fn hear(&self, board: &Board) -> Result<()> {
        // In this order: a rank that failed because of a mismatch announced its call first, which
        // is more specific.
        let given_up = board.given_up()?;
        let heard = board.announced()?;
        let mut state = lock(&self.state);
        let rank = self.group.rank();
        let compare = |(peer, said): &(usize, Announcement)| state.compare(rank, *peer, said);
        let compared = heard.iter().try_for_each(compare);
        state.heard = heard;
        drop(state);
        if let Some(error) = compared.err().or(given_up) {
            self.fail(error, None);
        }
        Ok(())
    }

    /// Waits until the state changes, or for at most this time.
    fn sleep<'a>(&self, state: MutexGuard<'a, State>, at_most: Option<Duration>) -> MutexGuard<'a, State> {
        match at_most {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(time) => self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
        }
    }
}

/// Returns the time for which a rank waits in a call before it announces it.
fn patience(call: &PendingCall) -> Duration {
    ANNOUNCE.min(call.deadline.after / ANNOUNCE_PART)
}
