//! Creates groups from a group: all members agree in a call, then the new members open channels.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{
    CallOptions, Collective, Element, Error, GroupId, Groups, HostCommunicator, HostView, HostViewMut, Loss,
    Operands, Result, ShrinkOptions, Shrunk, Signature, SplitRequest,
};

use super::RingCommunicator;
use super::checked_call::{Bytes, CheckedCall};
use super::shrink::check_group_size;

impl Groups for RingCommunicator {
    fn split(
        &self,
        color: Option<u64>,
        key: i64,
        options: &CallOptions,
    ) -> Result<Option<Box<dyn HostCommunicator>>> {
        let deadline = self.context.deadline(options.timeout);
        let own = SplitRequest::new(color, key).to_words();
        let mut all = vec![0; own.len() * self.group.size()];
        let mut signature = Signature::new(self.group.id(), Collective::Split, "ring");
        (signature.dtype, signature.count) = (Some(u64::DTYPE), own.len() as u64);
        let operands = Operands::Pair { send: HostView::new(&own), recv: HostViewMut::new(&mut all) };
        let number = self.agree_on(&signature, operands, options)?;
        let Some(color) = color else { return Ok(None) };
        let ranks = SplitRequest::ranks_with(color, &all);
        self.create_group(number, color, &ranks, deadline).map(Some)
    }

    fn new_group(&self, ranks: &[usize], options: &CallOptions) -> Result<Option<Box<dyn HostCommunicator>>> {
        let deadline = self.context.deadline(options.timeout);
        let position = self.group.check_members(ranks)?;
        let mut signature = Signature::new(self.group.id(), Collective::NewGroup, "recursive_doubling");
        signature.extra_fingerprint = Signature::fingerprint_of(ranks.iter().map(|&rank| rank as u64));
        let number = self.agree_on(&signature, Operands::Nothing, options)?;
        position.map(|_| self.create_group(number, 0, ranks, deadline)).transpose()
    }

    fn duplicate(&self, options: &CallOptions) -> Result<Box<dyn HostCommunicator>> {
        let deadline = self.context.deadline(options.timeout);
        let signature = Signature::new(self.group.id(), Collective::Duplicate, "recursive_doubling");
        let number = self.agree_on(&signature, Operands::Nothing, options)?;
        let all: Vec<usize> = (0..self.group.size()).collect();
        self.create_group(number, 0, &all, deadline)
    }

    fn shrink(&self, options: &ShrinkOptions) -> Result<Shrunk<Box<dyn HostCommunicator>>> {
        self.process.check()?;
        check_group_size(self.group.size())?;
        let reason = "it shrinks the group".to_owned();
        let mut engine = self.end(Error::Aborted { by: self.group.rank(), reason })?;
        let session = engine.session_mut();
        match session.usable() {
            Err(error) if session.has_ended() => Err(error),
            _ => self.create_remaining_group(session, options),
        }
    }
}

impl RingCommunicator {
    /// Makes a call that completes once every member has made it, and returns its number.
    fn agree_on(&self, signature: &Signature, operands: Operands<'_>, options: &CallOptions) -> Result<u64> {
        let mut engine = self.engine()?;
        let bytes = Bytes::new(operands, signature.collective);
        engine.execute(&CheckedCall::equal(signature), bytes, options.timeout)?;
        Ok(engine.session().history.last())
    }

    /// Connects these members of this group, including this rank, on which all members agreed in
    /// call `number`.
    ///
    /// The lock of this communicator is not held in the meantime, so it can serve other calls, as
    /// can members outside the new group.
    fn create_group(
        &self,
        number: u64,
        color: u64,
        ranks: &[usize],
        deadline: Instant,
    ) -> Result<Box<dyn HostCommunicator>> {
        let id = GroupId(Signature::fingerprint_of([self.group.id().0, number, color]));
        let members: Vec<usize> = ranks.iter().map(|&rank| self.log.member(rank)).collect();
        let proposal = self.context.settings(&self.tuning, &members);
        // Errors of this communicator name its ranks, not those of the new group.
        let cause = OnceCell::new();
        let alive =
            || self.check_alive(ranks, Duration::ZERO).inspect_err(|error| drop(cause.set(error.clone())));
        match self.context.connect(id, &members, &proposal, deadline, Some(&alive)) {
            Ok(connected) => Ok(Box::new(Self::over(self.context.clone(), connected))),
            Err(error) => {
                // A member that could not be reached may have aborted because another one died.
                let death =
                    cause.into_inner().or_else(|| self.check_alive(ranks, self.context.diagnosis()).err());
                Err(Error::NotConnected(Arc::new(death.unwrap_or_else(|| renumbered(error, ranks)))))
            }
        }
    }

    /// Returns an error if one of these ranks has died, or is found to have died within `at_most`.
    /// While another thread makes a call on this communicator, that thread detects it instead.
    fn check_alive(&self, ranks: &[usize], at_most: Duration) -> Result<()> {
        match self.engine.try_lock() {
            Ok(mut engine) => engine.session_mut().check_alive(ranks, at_most),
            Err(_) => Ok(()),
        }
    }
}

/// Replaces the ranks of a group that could not be created with the ranks of the parent. `ranks`
/// holds the members' ranks in the parent.
pub(super) fn renumbered(error: Error, ranks: &[usize]) -> Error {
    let number = |rank: usize| ranks.get(rank).copied().unwrap_or(rank);
    match error {
        Error::PeerLost { peer, during, loss } => {
            let loss = match loss {
                Loss::Reported { by, detail } => Loss::Reported { by: number(by), detail },
                other => other,
            };
            Error::PeerLost { peer: number(peer), during, loss }
        }
        Error::Timeout { mut waiting_for, after, during } => {
            waiting_for.iter_mut().for_each(|rank| *rank = number(*rank));
            waiting_for.sort_unstable();
            Error::Timeout { waiting_for, after, during }
        }
        Error::Aborted { by, reason } => Error::Aborted { by: number(by), reason },
        Error::Desync(mut desync) => {
            (desync.rank, desync.peer) = (number(desync.rank), number(desync.peer));
            Error::Desync(desync)
        }
        other => other,
    }
}
