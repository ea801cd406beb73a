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
//! 3. A rank that is connected to all members announces this, in the failed group and in the new
//!    one, because either stream to a member may break. When every member has done so, it announces
//!    that it is done, and takes part in no other attempt. If both streams of a member end before
//!    its announcement has arrived, there is another attempt without it.
//! 4. A rank goes on in the new group when as many members are done as are required
//!    (`ShrinkOptions::size_min`).
//!
//! No rank is done before every member is connected, and a member that could not be connected never
//! announces that it is. So either all living members go on in the group of an attempt, or all of
//! them make another attempt. A rank that makes another attempt because an announcement was late
//! still goes on in the former group if it learns that another rank has.
//!
//! If all streams between two living members break while they announce that they are connected, one
//! of them may be done, and the others may make another attempt without it. If a majority is
//! required, no majority is done in its attempt then, so it gets an error, as a minority does.
//! Without that requirement, it goes on, and its first call in the group fails, because the others
//! close it.

use std::cell::RefCell;
use std::time::Instant;

use comm_core::{During, Error, HostCommunicator, Invalid, Result, ShrinkOptions, Shrunk};

use super::RingCommunicator;
use super::agreement::{Agreement, Attempt, Phase};
use super::failure::LINGER;
use super::group_context::Connected;
use super::groups::renumbered;
use super::patience::{Patience, TURN};
use super::session::Session;
use crate::control::Proposal;

impl RingCommunicator {
    /// Ends this communicator, and creates a group of the remaining ranks.
    pub(super) fn create_remaining_group(
        &self,
        session: &mut Session,
        options: &ShrinkOptions,
    ) -> Result<Shrunk<Box<dyn HostCommunicator>>> {
        let mut shrink = Shrink {
            communicator: self,
            options: options.clone(),
            deadline: self.context.deadline(options.timeout),
            agreement: Agreement::new(session, options.patience),
        };
        let attempt = shrink.run();
        let mut agreement = shrink.agreement;
        match attempt {
            Ok(Attempt { ranks, connected, .. }) => {
                let completed = agreement.completed(&ranks);
                agreement.session.has_shrunk = true;
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

/// The creation of a group by this rank.
struct Shrink<'a> {
    communicator: &'a RingCommunicator,
    options: ShrinkOptions,
    deadline: Instant,
    agreement: Agreement<'a>,
}

impl Shrink<'_> {
    fn run(&mut self) -> Result<Attempt> {
        self.agreement.propose();
        while let Some(ranks) = self.agree()? {
            let Some(connected) = self.connect(&ranks)? else { continue };
            let number = self.agreement.proposal.attempt;
            self.agreement.former = Some(Attempt { number, ranks: ranks.clone(), connected });
            self.agreement.announce_connected();
            if self.await_members(&ranks)? {
                break;
            }
        }
        self.agreement.announce_done();
        self.await_quorum()?;
        let attempt = self.agreement.former.take();
        let mut attempt = attempt.ok_or_else(|| Error::Internal("no group was connected".into()))?;
        self.agreement.session.flush(LINGER);
        attempt.connected.engine.session_mut().flush(LINGER);
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
            let missing = self.agreement.missing(&members, Agreement::agrees);
            if missing.is_empty() {
                return Ok(Some(members));
            }
            self.wait(&missing)?;
            self.agreement.exclude_silent(&missing);
        }
    }

    /// Opens the channels of the group of these ranks. Returns `None` if another attempt is needed.
    fn connect(&mut self, ranks: &[usize]) -> Result<Option<Connected>> {
        let Self { communicator, agreement, .. } = self;
        let id = agreement.group_id();
        let members: Vec<usize> = ranks.iter().map(|&rank| communicator.log.member(rank)).collect();
        let settings = communicator.context.settings(&communicator.tuning, &members);
        // The others must hear of this rank again before their patience ends.
        let deadline = self.deadline.min(communicator.context.deadline(self.options.patience / 2));
        let agreement = RefCell::new(agreement);
        let unchanged = || {
            let mut agreement = agreement.borrow_mut();
            if agreement.poll(Phase::Connecting)? || agreement.is_done {
                return Err(Error::Internal("the members of the new group have changed".into()));
            }
            Ok(())
        };
        let attempt = agreement.borrow().proposal.attempt;
        let connected = communicator.context.connect(id, &members, &settings, deadline, Some(&unchanged));
        let agreement = agreement.into_inner();
        match connected {
            Ok(connected) => Ok(Some(connected)),
            // The members have changed, or another rank makes another attempt, or goes on in the
            // former one.
            Err(_) if agreement.proposal.attempt != attempt || agreement.is_done => Ok(None),
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
        loop {
            let changed = self.agreement.poll(Phase::Connected)?;
            if self.agreement.is_done {
                return Ok(true);
            }
            if changed {
                return Ok(false);
            }
            let missing = self.agreement.missing(ranks, Agreement::is_connected);
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

    /// Waits until as many members as are required have announced that they go on in this group,
    /// so that no others can go on in another one.
    fn await_quorum(&mut self) -> Result<()> {
        let attempt = self.agreement.former.as_ref();
        let ranks = attempt.map_or(Vec::new(), |attempt| attempt.ranks.clone());
        loop {
            self.agreement.poll(Phase::Done)?;
            let missing = self.agreement.missing(&ranks, Agreement::has_committed);
            let committed = ranks.len() - missing.len();
            if committed >= self.options.size_min {
                return Ok(());
            }
            let open: Vec<usize> =
                missing.into_iter().filter(|&rank| self.agreement.may_commit(rank)).collect();
            self.options.check_size(committed + open.len())?;
            self.wait(&open)?;
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

/// Returns an error if a group of this size cannot be shrunk.
pub(super) fn check_group_size(size: usize) -> Result<()> {
    if size <= Proposal::GROUP_SIZE_MAX {
        return Ok(());
    }
    Err(Invalid::Unsupported { backend: "a group of this size", collective: "shrink" }.into())
}
