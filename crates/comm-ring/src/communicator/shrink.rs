//! Creates a group of the ranks that remain after a failure.
//!
//! The remaining ranks agree over the control channel of the failed group, without a coordinator:
//!
//! 1. Each rank proposes a group: all ranks whose streams have not ended. It adopts the exclusions
//!    of every proposal that it receives, and sends its own again whenever it changes. A rank that
//!    excludes another ignores it from then on; a rank that finds itself excluded gives up.
//! 2. When all members of its proposal have sent the same one, a rank opens the channels of the
//!    new group. If that fails, or another proposal arrives, it goes back to step 1 with the next
//!    attempt.
//! 3. A rank that is connected to all members announces this. When every member has done so, it
//!    announces that it is done, and goes on in the new group. If the stream of a member ends
//!    before it has, there is another attempt without it.
//!
//! No rank is done before every member is connected, and a member that could not be connected never
//! announces that it is. So either all living members go on in the group of an attempt, or all of
//! them make another attempt. A rank that makes another attempt because an announcement was late
//! still goes on in the former group if it learns that another rank has.
//!
//! One case is left: if the stream between two living members breaks while they announce that they
//! are connected, one of them may be done, and the others may make another attempt without it. Its
//! first call in the group then fails, because the others close it.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use comm_core::{
    Armed, During, Error, GroupId, HostCommunicator, Invalid, Result, ShrinkOptions, Shrunk, Signature,
    Transport,
};

use super::RingCommunicator;
use super::group_context::Connected;
use super::groups::renumbered;
use super::predecessor::Predecessor;
use super::session::Session;
use crate::control::{ControlFrame, Proposal, ShrinkFrame};

/// Distinguishes the ids of these groups from those of groups created by calls.
const SHRINK: u64 = 0x7368_7269_6e6b_0000;

/// The longest time between two looks at the control channel.
const TURN: Duration = Duration::from_millis(50);

impl<T: Transport + 'static> RingCommunicator<T> {
    /// Ends this communicator, and creates a group of the remaining ranks.
    pub(super) fn create_remaining_group(
        &self,
        session: &mut Session<T>,
        options: &ShrinkOptions,
    ) -> Result<Shrunk<Box<dyn HostCommunicator>>> {
        let mut shrink = Shrink {
            communicator: self,
            options: options.clone(),
            deadline: self.context.deadline(options.timeout),
            agreement: Agreement::new(session, options.patience),
            former: None,
            is_confirmed: false,
        };
        let attempt = shrink.run();
        let Shrink { mut agreement, .. } = shrink;
        match attempt {
            Ok(Attempt { number, ranks, mut connected }) => {
                let completed = agreement.completed(&ranks);
                let control = agreement.session.control.take();
                let predecessor = Predecessor::new(control, self.group.rank(), ranks.clone(), number);
                connected.engine.session_mut().predecessor = Some(predecessor);
                let comm = Box::new(Self::over(self.context.clone(), connected));
                Ok(Shrunk::new(comm as Box<dyn HostCommunicator>, ranks, completed))
            }
            Err(error) => {
                agreement.leave();
                Err(error)
            }
        }
    }
}

/// A group whose members this rank is connected to.
struct Attempt<T: Transport> {
    number: u32,
    ranks: Vec<usize>,
    connected: Connected<T>,
}

/// The creation of a group by this rank.
struct Shrink<'a, T: Transport + 'static> {
    communicator: &'a RingCommunicator<T>,
    options: ShrinkOptions,
    deadline: Instant,
    agreement: Agreement<'a, T>,
    /// The last attempt in which this rank was connected, until another one is.
    former: Option<Attempt<T>>,
    /// Whether no rank has reported that it continues without this one.
    is_confirmed: bool,
}

impl<T: Transport + 'static> Shrink<'_, T> {
    fn run(&mut self) -> Result<Attempt<T>> {
        self.agreement.propose();
        while let Some(ranks) = self.agree()? {
            if self.must_confirm(ranks.len()) {
                self.confirm()?;
                continue;
            }
            let Some(connected) = self.connect(&ranks)? else { continue };
            let number = self.agreement.proposal.attempt;
            self.agreement.connected = Some(number);
            self.agreement.announce(ShrinkFrame::Connected { attempt: number });
            let attempt = self.former.insert(Attempt { number, ranks, connected });
            let ranks = attempt.ranks.clone();
            if self.await_members(&ranks)? {
                break;
            }
        }
        let attempt = self.former.take().ok_or_else(|| Error::Internal("no group was connected".into()))?;
        self.agreement.announce(ShrinkFrame::Done { attempt: attempt.number });
        self.agreement.session.flush();
        Ok(attempt)
    }

    /// Waits until all members of this rank's proposal have made the same one, and returns them;
    /// `None` if another rank is done with the former attempt.
    fn agree(&mut self) -> Result<Option<Vec<usize>>> {
        loop {
            self.agreement.poll(Phase::Agreeing)?;
            if self.agreement.is_done {
                return Ok(None);
            }
            let members = self.agreement.members();
            self.options.check_size(members.len())?;
            let missing = self.agreement.missing(&members, |agreement, peer| agreement.agrees(peer));
            if missing.is_empty() {
                return Ok(Some(members));
            }
            self.wait(&missing)?;
            self.agreement.exclude_silent(&missing);
        }
    }

    /// Returns whether the missing ranks may have continued without this one. Only a rank that was
    /// stopped while the present group was created may learn that in it.
    fn must_confirm(&self, members: usize) -> bool {
        let session = &self.agreement.session;
        !self.is_confirmed && session.predecessor.is_some() && 2 * members <= session.group.size()
    }

    /// Waits a short time for the report that the missing ranks have not died.
    fn confirm(&mut self) -> Result<()> {
        let mut patience = Patience::new(self.communicator.context.diagnosis(), self.now());
        while !patience.left(self.now()).is_zero() {
            self.agreement.poll(Phase::Agreeing)?;
            self.wait(&[])?;
        }
        self.is_confirmed = true;
        Ok(())
    }

    /// Opens the channels of the group of these ranks. Returns `None` if another attempt is needed.
    fn connect(&mut self, ranks: &[usize]) -> Result<Option<Connected<T>>> {
        let Self { communicator, agreement, .. } = self;
        let id = agreement.group_id();
        let members: Vec<usize> = ranks.iter().map(|&rank| communicator.log.members()[rank]).collect();
        let settings = communicator.context.settings(&communicator.tuning, &members);
        // The others must hear of this rank again before their patience ends.
        let deadline = self.deadline.min(communicator.context.deadline(self.options.patience / 2));
        let agreement = RefCell::new(agreement);
        let unchanged = || match agreement.borrow_mut().poll(Phase::Connecting) {
            Ok(false) => Ok(()),
            Ok(true) => Err(Error::Internal("the members of the new group have changed".into())),
            Err(error) => Err(error),
        };
        let attempt = agreement.borrow().proposal.attempt;
        let connected = communicator.context.connect(id, &members, &settings, deadline, Some(&unchanged));
        let agreement = agreement.into_inner();
        match connected {
            Ok(connected) => Ok(Some(connected)),
            // The members have changed, or another rank makes another attempt.
            Err(_) if agreement.proposal.attempt != attempt => Ok(None),
            Err(error @ (Error::Io { .. } | Error::Invalid(_) | Error::Internal(_))) => Err(error),
            Err(error) => {
                let error = renumbered(error, ranks);
                tracing::info!(%error, "cannot connect the remaining ranks");
                self.await_change().map(|()| None)
            }
        }
    }

    /// Waits a short time for the reason why the members could not be connected, and begins the
    /// next attempt.
    fn await_change(&mut self) -> Result<()> {
        let mut patience = Patience::new(self.communicator.context.diagnosis(), self.now());
        while !self.agreement.poll(Phase::Connecting)? {
            self.wait(&[])?;
            if patience.left(self.now()).is_zero() {
                self.agreement.begin_next_attempt();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits until every member is connected. Returns false if a rank makes another attempt.
    fn await_members(&mut self, ranks: &[usize]) -> Result<bool> {
        let attempt = self.agreement.proposal.attempt;
        loop {
            let changed = self.agreement.poll(Phase::Connected)?;
            if self.agreement.is_done {
                return Ok(true);
            }
            if changed {
                return Ok(false);
            }
            let missing = self.agreement.missing(ranks, |agreement, peer| {
                agreement.session.control.shrink_state(peer).is_connected_in(attempt)
            });
            if missing.is_empty() {
                return Ok(true);
            }
            self.wait(&missing)?;
            if self.agreement.exclude_silent(&missing) {
                self.agreement.begin_next_attempt();
                return Ok(false);
            }
        }
    }

    /// Sleeps until something may have arrived, unless the deadline has passed.
    fn wait(&mut self, missing: &[usize]) -> Result<()> {
        let left = self.deadline.saturating_duration_since(self.now());
        if left.is_zero() {
            let (waiting_for, after) = (missing.to_vec(), self.options.timeout);
            return Err(Error::Timeout { waiting_for, after, during: During::Shrink });
        }
        self.agreement.sleep(left.min(TURN))
    }

    fn now(&self) -> Instant {
        self.agreement.session.data.now()
    }
}

/// The remaining time to wait for others. It passes only while this rank runs: if it was stopped,
/// the others may have sent everything in the meantime.
#[derive(Debug, Clone)]
struct Patience {
    left: Duration,
    last: Instant,
}

impl Patience {
    const fn new(left: Duration, now: Instant) -> Self {
        Self { left, last: now }
    }

    fn left(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.last).min(2 * TURN);
        (self.left, self.last) = (self.left.saturating_sub(passed), now);
        self.left
    }
}

/// The step of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Agreeing,
    Connecting,
    Connected,
}

/// The proposals of this rank and its peers.
struct Agreement<'a, T> {
    session: &'a mut Session<T>,
    /// The proposal of this rank.
    proposal: Proposal,
    /// The last attempt in which this rank was connected.
    connected: Option<u32>,
    /// Whether a peer goes on in the group of that attempt.
    is_done: bool,
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

impl<'a, T: Transport + 'static> Agreement<'a, T> {
    fn new(session: &'a mut Session<T>, patience: Duration) -> Self {
        let proposal = Proposal { completed: session.completed(), ..Proposal::default() };
        let proposed = session.data.now();
        let peer = Heard { frames: 0, patience: Patience::new(patience, proposed) };
        let peers = vec![peer; session.group.size()];
        Self { session, proposal, connected: None, is_done: false, patience, peers, proposed }
    }

    /// Reads the control channel and adopts the exclusions of others. Returns whether the proposal
    /// of this rank has changed.
    fn poll(&mut self, phase: Phase) -> Result<bool> {
        let mut events = std::mem::take(&mut self.session.events);
        self.session.control.poll(&mut events);
        events.clear();
        self.session.events = events;
        self.listen();
        self.check_deserted()?;
        self.check_done()?;
        let before = (self.proposal.attempt, self.proposal.excluded.len());
        for peer in self.session.group.peers() {
            if self.session.control.is_disconnected(peer) && !self.reports_death_of(peer, phase) {
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

    /// Returns whether the group of the present attempt reports the death of a peer: both are
    /// connected to all of its members. A peer that cannot be connected may be alive.
    fn reports_death_of(&self, peer: usize, phase: Phase) -> bool {
        phase == Phase::Connected
            && self.session.control.shrink_state(peer).is_connected_in(self.proposal.attempt)
    }

    /// Checks whether a member had continued without this rank before the present group was
    /// complete.
    fn check_deserted(&mut self) -> Result<()> {
        match self.session.predecessor.as_mut().and_then(Predecessor::deserter) {
            Some(peer) => Err(left_out(peer)),
            None => Ok(()),
        }
    }

    /// Checks whether a peer goes on in a group that it has created.
    fn check_done(&mut self) -> Result<()> {
        for peer in self.session.group.peers() {
            match self.session.control.shrink_state(peer).done {
                None => {}
                done if done == self.connected => self.is_done = true,
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
        if theirs.excluded.last().is_some_and(|&last| last >= group.size()) {
            own.excluded.insert(peer);
            return Ok(());
        }
        own.attempt = own.attempt.max(theirs.attempt);
        own.excluded.extend(&theirs.excluded);
        Ok(())
    }

    /// Returns the members of this rank's proposal, in the order of their ranks.
    fn members(&self) -> Vec<usize> {
        (0..self.session.group.size()).filter(|rank| !self.proposal.excluded.contains(rank)).collect()
    }

    /// Returns the peers among these ranks that do not satisfy the condition.
    fn missing(&self, ranks: &[usize], is_satisfied: impl Fn(&Self, usize) -> bool) -> Vec<usize> {
        let own = self.session.group.rank();
        ranks.iter().copied().filter(|&rank| rank != own && !is_satisfied(self, rank)).collect()
    }

    /// Returns whether the last proposal of a peer is that of this rank.
    fn agrees(&self, peer: usize) -> bool {
        let theirs = self.session.control.shrink_state(peer).proposal.as_ref();
        theirs.is_some_and(|theirs| theirs.agrees_with(&self.proposal))
    }

    /// Returns the number of the last call that all these ranks have completed.
    fn completed(&self, ranks: &[usize]) -> u64 {
        let theirs =
            ranks.iter().filter_map(|&rank| self.session.control.shrink_state(rank).proposal.as_ref());
        theirs.map(|theirs| theirs.completed).fold(self.proposal.completed, u64::min)
    }

    /// Returns the id of the proposed group.
    fn group_id(&self) -> GroupId {
        let Proposal { attempt, excluded, .. } = &self.proposal;
        let fixed = [self.session.group.id().0, SHRINK, u64::from(*attempt)];
        GroupId(Signature::fingerprint_of(fixed.into_iter().chain(excluded.iter().map(|&rank| rank as u64))))
    }

    /// Leaves out those of these ranks that have been silent for too long. Returns whether there
    /// are any.
    fn exclude_silent(&mut self, missing: &[usize]) -> bool {
        let is_silent = |rank: &usize| self.peers[*rank].patience.left.is_zero();
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
            if frames > peer.frames {
                *peer = Heard { frames, patience: Patience::new(self.patience, now) };
            }
            peer.patience.left(now);
        }
        if now.saturating_duration_since(self.proposed) >= (self.patience / 4).max(TURN) {
            self.propose();
        }
    }

    fn begin_next_attempt(&mut self) {
        self.proposal.attempt = self.proposal.attempt.saturating_add(1);
        self.propose();
    }

    fn propose(&mut self) {
        self.proposed = self.session.data.now();
        self.announce(ShrinkFrame::Propose(self.proposal.clone()));
    }

    fn announce(&mut self, frame: ShrinkFrame) {
        self.session.control.send_all(&ControlFrame::Shrink(frame));
    }

    /// Lets the others go on without this rank.
    fn leave(&mut self) {
        self.proposal.excluded.insert(self.session.group.rank());
        self.propose();
        self.session.flush();
    }

    /// Sleeps until something arrives on the control channel.
    fn sleep(&mut self, at_most: Duration) -> Result<()> {
        if self.session.control.arm()? == Armed::Sleep {
            self.session.control.sleep(at_most)?;
        }
        Ok(())
    }
}

/// Returns an error if a group of this size cannot be shrunk.
pub(super) fn check_group_size(size: usize) -> Result<()> {
    if size <= Proposal::GROUP_SIZE_MAX {
        return Ok(());
    }
    Err(Invalid::Unsupported { backend: "a group of this size", collective: "shrink" }.into())
}

/// The error of a rank that a peer has excluded.
#[cold]
fn left_out(by: usize) -> Error {
    let reason = "the other ranks continue in a smaller group, because this one did not answer in time";
    Error::Aborted { by, reason: reason.into() }
}
