//! Leaves a group: announces it to the other ranks, and waits for them if the caller wants that.

use std::time::Duration;

use comm_core::{Armed, Desync, During, Error, Invalid, Loss, Result};

use super::patience::Patience;
use super::session::Session;
use crate::control::ControlFrame;

/// The time for which a rank that leaves in order tries to send its queued frames. It passes only
/// if a channel has no space for a goodbye: without it, a peer that has yet to read the last
/// messages would take this rank for dead. On a busy machine, a peer may need seconds until it
/// reads.
const GOODBYE_LINGER: Duration = Duration::from_secs(5);

/// A time that can be added to any instant.
const FOREVER: Duration = Duration::from_secs(1 << 32);

impl Session {
    /// Leaves without waiting for the others. Errors are logged, because there is no caller to
    /// return them to.
    pub(super) fn close(&mut self, lost_host: Option<(usize, Loss)>) {
        if self.poison.is_some() {
            return;
        }
        let left = self
            .leave(lost_host)
            .and_then(|()| self.await_cause(GOODBYE_LINGER, |left| Ok(left.control.is_flushed())));
        match left {
            Ok(()) => self.report_close(),
            Err(error) => {
                tracing::error!(%error, "left a group that had failed");
                self.give_up_idle(error);
            }
        }
    }

    /// Leaves without waiting for the others, also if some of them have died, and fails every later
    /// call.
    pub(super) fn leave_for_good(&mut self) {
        self.say_goodbye();
        self.flush(GOODBYE_LINGER);
        self.poison(&Invalid::Finalized.into());
        self.report_close();
    }

    /// Returns the ranks that are known to this rank to have left in order.
    pub(super) fn departed(&mut self) -> Vec<usize> {
        self.poll_events();
        self.group.peers().filter(|peer| self.control.left_after(*peer).is_some()).collect()
    }

    /// Leaves, and waits until all other members have left.
    pub(super) fn finalize(&mut self, timeout: Duration, lost_host: Option<(usize, Loss)>) -> Result<()> {
        match self.leave(lost_host).and_then(|()| self.await_goodbyes(timeout)) {
            Ok(()) => {
                self.flush(GOODBYE_LINGER);
                self.poison(&Invalid::Finalized.into());
                self.report_close();
                Ok(())
            }
            Err(error) => Err(self.give_up_idle(error)),
        }
    }

    /// Announces an orderly exit to all peers, unless a member has died or ranks have made
    /// different calls. A program that detects a death in another group, or while it sends or
    /// receives a message, often ends here without another call.
    ///
    /// `lost_host` is a rank of which messages have shown that its host does not answer. The
    /// control channel may show that a second later, and until then the others would name this
    /// rank, which leaves because of it. (The end of a stream of messages does not show that a rank
    /// has died.)
    fn leave(&mut self, lost_host: Option<(usize, Loss)>) -> Result<()> {
        // With shared memory, only this call checks whether the other processes are alive.
        self.control.arm()?;
        self.handle_events()?;
        let lost_host = lost_host.filter(|(peer, _)| self.control.left_after(*peer).is_none());
        if let Some((peer, loss)) = self.control.dead().or(lost_host) {
            return Err(Error::PeerLost { peer, during: During::Finalize, loss });
        }
        self.check_unexpected(self.data.now()).map_err(|stop| self.find_cause(stop))?;
        self.say_goodbye();
        Ok(())
    }

    fn say_goodbye(&mut self) {
        let sequence = self.history.last();
        let past = self.history.before(sequence + 1);
        self.control.send_all(&ControlFrame::Goodbye { sequence, past });
    }

    fn await_goodbyes(&mut self, timeout: Duration) -> Result<()> {
        let all_left = |session: &mut Self| {
            session.check_leaving()?;
            Ok(session.control.present().is_empty())
        };
        let timeout = timeout.min(FOREVER);
        let answers_within = self.config.diagnosis.min(timeout / 2);
        let until_asked = Patience::until_deadline(timeout - answers_within, self.data.now());
        self.await_cause_within(until_asked, all_left)?;
        let present = self.control.present();
        if !present.is_empty() {
            self.ask_all(&present);
            self.await_cause(answers_within, all_left)?;
        }
        let present = self.control.present();
        if present.is_empty() {
            return Ok(());
        }
        let absent = self.control.absent(self.history.last(), &present);
        let waiting_for = if absent.is_empty() { present } else { absent };
        Err(Error::Timeout { waiting_for, after: timeout, during: During::Finalize })
    }

    /// Returns an error if another rank aborted, died, or left after a different number of calls.
    fn check_leaving(&self) -> Result<()> {
        if let Some(pending) = &self.pending_abort {
            return Err(self.reported(pending.from, pending.cause.clone()));
        }
        let last = self.history.last();
        if let Some((peer, loss)) = self.control.lost(last) {
            return Err(Error::PeerLost { peer, during: During::Finalize, loss });
        }
        let Some(peer) = self.group.peers().find(|&peer| self.control.left_after(peer) > Some(last)) else {
            return Ok(());
        };
        let (sequence, rank) = (last + 1, self.group.rank());
        let theirs = self.control.past_call(peer, sequence).cloned();
        Err(Desync::new(sequence, (rank, None), (peer, theirs)).into())
    }

    /// Sends queued frames for at most this time, which does not pass while this rank is stopped.
    pub(super) fn flush(&mut self, linger: Duration) {
        let mut patience = Patience::new(linger, self.data.now());
        while !self.control.is_flushed() && !patience.left(self.data.now()).is_zero() {
            self.poll_events();
            if self.poison.is_some() {
                self.events.clear();
            }
            let waited = match self.control.arm() {
                Ok(Armed::Sleep) => self.control.sleep(None, patience.turn()),
                armed => armed.map(drop),
            };
            if waited.is_err() {
                return;
            }
        }
    }
}
