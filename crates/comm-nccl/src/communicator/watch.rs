//! The two threads of a communicator: one looks after the device, and must never be late; one reads and writes what ranks tell
//! each other through their store, which may take its time.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::Result;

use super::board::{Announcement, Board};
use super::engine::Engine;
use super::state::{PendingCall, State};
use crate::sync::lock;

/// How often the watchdog looks while calls are on the device.
const WATCH: Duration = Duration::from_millis(5);

/// When a rank tells others that it waits, at the latest; and how often it looks then whether they do, at the most.
const ANNOUNCE: Duration = Duration::from_secs(1);
/// The same, as a part of the call's time, which may be short.
const ANNOUNCE_PART: u32 = 4;
/// How often a rank looks whether it should.
const TICK: Duration = Duration::from_millis(50);
/// Large groups look less often, so that the store can serve all.
const PER_RANK: Duration = Duration::from_millis(10);

impl Engine {
    /// What the watchdog does: notices what nobody waits for.
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

    /// What the courier does. A store that does not answer takes nothing from the communicator, which has its deadlines; it
    /// is not asked again, as one that is gone does not come back with what it held.
    pub(super) fn run_courier(&self, board: &Board) {
        if let Err(error) = self.exchange_news(board) {
            tracing::warn!(%error, "the ranks of a group cannot tell each other of failures any more");
        }
    }

    /// Tells others which call this rank has been waiting in for long, and why it has given up; and looks what they say.
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
                // After a failure, others are still to find what this rank was in.
                return if told > 0 && in_order { board.leave() } else { Ok(()) };
            }
            let Some(oldest) = state.oldest().cloned() else {
                state = self.sleep(state, None);
                continue;
            };
            if !state.pending_calls().any(|call| call.deadline.began.elapsed() >= patience(call)) {
                // A call that has less time may come meanwhile.
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

    /// Looks what others say, and fails if this rank cannot go on.
    fn hear(&self, board: &Board) -> Result<()> {
        // In this order: a rank that gave up because of a mismatch said before what it was in, which tells more.
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

    /// Waits until something changes, or for so long.
    fn sleep<'a>(&self, state: MutexGuard<'a, State>, at_most: Option<Duration>) -> MutexGuard<'a, State> {
        match at_most {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(time) => self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
        }
    }
}

/// How long a rank waits in a call before it tells others.
fn patience(call: &PendingCall) -> Duration {
    ANNOUNCE.min(call.deadline.after / ANNOUNCE_PART)
}
