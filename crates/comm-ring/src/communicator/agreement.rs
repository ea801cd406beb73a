//! The proposals of the ranks that create a smaller group, and the attempts to connect them.

use std::time::{Duration, Instant};

use comm_core::{Armed, Error, GroupId, Result, Signature};

use super::failure::LINGER;
use super::group_context::Connected;
use super::patience::{Patience, TURN};
use super::session::Session;
use crate::control::{Control, ControlFrame, Proposal, ShrinkFrame};

/// Distinguishes the ids of these groups from the ids of groups created by calls.
const SHRINK: u64 = 0x7368_7269_6e6b_0000;

/// A group whose members this rank is connected to.
pub(super) struct Attempt {
    pub(super) number: u32,
    /// The members, by their ranks in the failed group.
    pub(super) ranks: Vec<usize>,
    pub(super) connected: Connected,
}

impl Attempt {
    fn control(&self) -> &Control {
        &self.connected.engine.session().control
    }

    fn control_mut(&mut self) -> &mut Control {
        &mut self.connected.engine.session_mut().control
    }

    /// Returns the rank in the new group of a member.
    fn position(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|&member| member == rank)
    }

    /// Returns whether a member has announced in the new group that it is connected.
    fn has_formed(&self, rank: usize) -> bool {
        self.position(rank).is_some_and(|member| self.control().shrink_state(member).has_formed)
    }

    /// Returns whether a member has announced in the new group that it goes on there.
    fn has_committed(&self, rank: usize) -> bool {
        self.position(rank).is_some_and(|member| self.control().shrink_state(member).has_committed)
    }

    /// Returns whether the stream of a member in the new group is open.
    fn is_open(&self, rank: usize) -> bool {
        let is_open = |member| self.control().is_open(member) && !self.control().is_disconnected(member);
        self.position(rank).is_some_and(is_open)
    }
}

/// The step of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Agreeing,
    Connecting,
    Connected,
    /// This rank has announced that it goes on, so its proposal does not change any more.
    Done,
}

/// The proposals of this rank and its peers.
pub(super) struct Agreement<'a> {
    pub(super) session: &'a mut Session,
    /// The proposal of this rank.
    pub(super) proposal: Proposal,
    /// The last attempt in which this rank was connected, until another one is.
    pub(super) former: Option<Attempt>,
    /// Whether a peer goes on in the group of that attempt.
    pub(super) is_done: bool,
    /// The time for which a silent peer is waited for.
    patience: Duration,
    peers: Vec<Heard>,
    /// The time of the last proposal.
    proposed: Instant,
}

/// The last sign of life of a peer.
#[derive(Debug, Clone)]
struct Heard {
    /// The number of frames that it has sent.
    frames: u64,
    /// The remaining time to wait for the next one.
    patience: Patience,
}

impl<'a> Agreement<'a> {
    pub(super) fn new(session: &'a mut Session, patience: Duration) -> Self {
        let proposal = Proposal { completed: session.completed(), ..Proposal::default() };
        let proposed = session.data.now();
        let peer = Heard { frames: 0, patience: Patience::new(patience, proposed) };
        let peers = vec![peer; session.group.size()];
        Self { session, proposal, former: None, is_done: false, patience, peers, proposed }
    }

    /// Reads the control channels and adopts the exclusions of others. Returns whether the proposal
    /// of this rank has changed.
    pub(super) fn poll(&mut self, phase: Phase) -> Result<bool> {
        self.session.poll_events();
        self.session.events.clear();
        if let Some(attempt) = &mut self.former {
            attempt.connected.engine.session_mut().poll_events();
        }
        self.listen();
        self.check_done()?;
        if phase == Phase::Done {
            return Ok(false);
        }
        let before = (self.proposal.attempt, self.proposal.excluded.len());
        for peer in self.session.group.peers() {
            if self.session.control.is_disconnected(peer) && !self.keeps(peer, phase) {
                self.proposal.excluded.insert(peer);
            }
            self.adopt_proposal(peer)?;
        }
        let changed = (self.proposal.attempt, self.proposal.excluded.len()) != before;
        if changed && phase != Phase::Agreeing && self.proposal.attempt == before.0 {
            self.proposal.attempt = self.proposal.attempt.saturating_add(1);
        }
        if changed {
            self.propose();
        }
        Ok(changed)
    }

    /// Returns whether a peer whose stream has ended remains a member. If both are connected to all
    /// members, the group of the present attempt reports its death. While its stream in that group
    /// is open, it can still announce there that it is. A peer that cannot be connected may be
    /// alive.
    fn keeps(&self, peer: usize, phase: Phase) -> bool {
        let is_open = |attempt: &Attempt| attempt.is_open(peer);
        phase == Phase::Connected && (self.is_connected(peer) || self.former.as_ref().is_some_and(is_open))
    }

    /// Returns whether a peer has announced that it is connected in the last attempt in which this
    /// rank was.
    pub(super) fn is_connected(&self, peer: usize) -> bool {
        let state = self.session.control.shrink_state(peer);
        let in_attempt = |it: &Attempt| state.is_connected_in(it.number) || it.has_formed(peer);
        self.former.as_ref().is_some_and(in_attempt)
    }

    /// Announces to the members that this rank goes on in the group of the former attempt.
    pub(super) fn announce_done(&mut self) {
        let Some(attempt) = &mut self.former else { return };
        let done = ShrinkFrame::Done { attempt: attempt.number };
        attempt.control_mut().send_all(&ControlFrame::Shrink(ShrinkFrame::Committed));
        self.announce(done);
    }

    /// Returns whether a peer has announced that it goes on in the group of the former attempt.
    pub(super) fn has_committed(&self, peer: usize) -> bool {
        let done = self.session.control.shrink_state(peer).done;
        self.former.as_ref().is_some_and(|it| done == Some(it.number) || it.has_committed(peer))
    }

    /// Returns whether a member may still announce that it goes on in the group of the former
    /// attempt.
    pub(super) fn may_commit(&self, peer: usize) -> bool {
        let proposal = self.session.control.shrink_state(peer).proposal.as_ref();
        let has_given_up = proposal.is_some_and(|proposal| proposal.excluded.contains(&peer));
        let is_open = !self.session.control.is_disconnected(peer)
            || self.former.as_ref().is_some_and(|attempt| attempt.is_open(peer));
        is_open && !has_given_up && !self.peers[peer].patience.is_over()
    }

    /// Checks whether a peer goes on in a group that it has created.
    fn check_done(&mut self) -> Result<()> {
        let connected = self.former.as_ref().map(|attempt| attempt.number);
        for peer in self.session.group.peers() {
            match self.session.control.shrink_state(peer).done {
                None => {}
                done if done == connected => self.is_done = true,
                Some(_) if self.proposal.excluded.contains(&peer) => {}
                Some(_) => return Err(left_out(peer)),
            }
        }
        Ok(())
    }

    fn adopt_proposal(&mut self, peer: usize) -> Result<()> {
        let (own, group) = (&mut self.proposal, self.session.group);
        let Some(theirs) = &self.session.control.shrink_state(peer).proposal else { return Ok(()) };
        if own.excluded.contains(&peer) {
            return Ok(());
        }
        if theirs.excluded.contains(&group.rank()) {
            return Err(left_out(peer));
        }
        own.attempt = own.attempt.max(theirs.attempt);
        own.excluded.extend(&theirs.excluded);
        Ok(())
    }

    /// Returns the members of this rank's proposal, in the order of their ranks.
    pub(super) fn members(&self) -> Vec<usize> {
        (0..self.session.group.size()).filter(|rank| !self.proposal.excluded.contains(rank)).collect()
    }

    /// Returns the peers among these ranks that do not satisfy the condition.
    pub(super) fn missing(&self, ranks: &[usize], is_satisfied: impl Fn(&Self, usize) -> bool) -> Vec<usize> {
        let own = self.session.group.rank();
        ranks.iter().copied().filter(|&rank| rank != own && !is_satisfied(self, rank)).collect()
    }

    /// Returns whether the last proposal of a peer is the same as this rank's.
    pub(super) fn agrees(&self, peer: usize) -> bool {
        let theirs = self.session.control.shrink_state(peer).proposal.as_ref();
        theirs.is_some_and(|theirs| theirs.agrees_with(&self.proposal))
    }

    /// Returns the number of the last call that all these ranks have completed.
    pub(super) fn completed(&self, ranks: &[usize]) -> u64 {
        let theirs =
            ranks.iter().filter_map(|&rank| self.session.control.shrink_state(rank).proposal.as_ref());
        theirs.map(|theirs| theirs.completed).fold(self.proposal.completed, u64::min)
    }

    /// Returns the id of the proposed group.
    pub(super) fn group_id(&self) -> GroupId {
        let Proposal { attempt, excluded, .. } = &self.proposal;
        let fixed = [self.session.group.id().0, SHRINK, u64::from(*attempt)];
        GroupId(Signature::fingerprint_of(fixed.into_iter().chain(excluded.iter().map(|&rank| rank as u64))))
    }

    /// Leaves out the ranks that have been silent for too long. Returns whether there are any.
    pub(super) fn exclude_silent(&mut self, missing: &[usize]) -> bool {
        let is_silent = |rank: &usize| self.peers[*rank].patience.is_over();
        let silent: Vec<usize> = missing.iter().copied().filter(is_silent).collect();
        if silent.is_empty() {
            return false;
        }
        tracing::warn!(ranks = ?silent, "left out of the smaller group: they did not answer in time");
        self.proposal.excluded.extend(silent);
        self.propose();
        true
    }

    /// Notices which peers have sent something, and lets them hear of this rank.
    fn listen(&mut self) {
        let now = self.session.data.now();
        for rank in self.session.group.peers() {
            let frames = self.session.control.shrink_state(rank).frames;
            let peer = &mut self.peers[rank];
            // Other ranks watch a peer with which this one is not connected.
            if frames > peer.frames || !self.session.control.is_open(rank) {
                *peer = Heard { frames, patience: Patience::new(self.patience, now) };
            }
            peer.patience.left(now);
        }
        if now.saturating_duration_since(self.proposed) >= (self.patience / 4).max(TURN) {
            self.propose();
        }
    }

    /// Announces to the members that this rank is connected to all of them.
    pub(super) fn announce_connected(&mut self) {
        let Some(attempt) = &mut self.former else { return };
        let connected = ShrinkFrame::Connected { attempt: attempt.number };
        attempt.control_mut().send_all(&ControlFrame::Shrink(ShrinkFrame::Formed));
        self.announce(connected);
    }

    pub(super) fn begin_next_attempt(&mut self) {
        self.proposal.attempt = self.proposal.attempt.saturating_add(1);
        self.propose();
    }

    pub(super) fn propose(&mut self) {
        self.proposed = self.session.data.now();
        self.announce(ShrinkFrame::Propose(self.proposal.clone()));
        self.session.control.rewire(&self.proposal.excluded);
    }

    pub(super) fn announce(&mut self, frame: ShrinkFrame) {
        self.session.control.send_all(&ControlFrame::Shrink(frame));
    }

    /// Lets the others go on without this rank.
    pub(super) fn leave(&mut self) {
        self.proposal.excluded.insert(self.session.group.rank());
        self.propose();
        self.session.flush(LINGER);
    }

    /// Sleeps until something arrives on the control channels.
    pub(super) fn sleep(&mut self, at_most: Duration) -> Result<()> {
        if self.session.control.arm()? == Armed::Ready {
            return Ok(());
        }
        let Some(attempt) = &mut self.former else { return self.session.control.sleep(None, at_most) };
        if attempt.control_mut().arm()? == Armed::Ready {
            return Ok(());
        }
        self.session.control.sleep(Some(attempt.control().descriptor()), at_most)
    }
}

/// The error of a rank that a peer has excluded.
#[cold]
fn left_out(by: usize) -> Error {
    let reason = "the other ranks continue in a smaller group, because this one did not answer in time";
    Error::Aborted { by, reason: reason.into() }
}
