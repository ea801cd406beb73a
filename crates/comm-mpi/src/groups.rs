//! Groups of some ranks: the ranks agree, then MPI splits the communicator.

use comm_core::{
    CallOptions, Collective, Element, Error, GroupId, Groups, HostCommunicator, Result, Signature,
    SplitRequest,
};

use crate::communicator::MpiCommunicator;
use crate::raw::Split;
use crate::session::{CallContext, Session};

impl Groups for MpiCommunicator {
    fn split(
        &self,
        color: Option<u64>,
        key: i64,
        options: &CallOptions,
    ) -> Result<Option<Box<dyn HostCommunicator>>> {
        let mut signature = Signature::new(self.session().group.id(), Collective::Split, "");
        let own = SplitRequest::new(color, key).to_words();
        (signature.dtype, signature.count) = (Some(u64::DTYPE), own.len() as u64);
        self.create(&signature, options, |session, context| {
            let all = session.all_words(&own, context)?;
            // Colors of MPI are nonnegative integers of 32 bits.
            let number = |color| SplitRequest::number_of(color, &all);
            Ok(color.map(|color| (number(color), SplitRequest::ranks_with(color, &all), color)))
        })
    }

    fn new_group(&self, ranks: &[usize], options: &CallOptions) -> Result<Option<Box<dyn HostCommunicator>>> {
        let group = self.session().group;
        let position = group.check_members(ranks)?;
        let mut signature = Signature::new(group.id(), Collective::NewGroup, "");
        signature.extra_fingerprint = Signature::fingerprint_of(ranks.iter().map(|&rank| rank as u64));
        self.create(&signature, options, |session, context| {
            session.barrier(context)?;
            Ok(position.map(|_| (0, ranks.to_vec(), 0)))
        })
    }

    fn duplicate(&self, options: &CallOptions) -> Result<Box<dyn HostCommunicator>> {
        let group = self.session().group;
        let signature = Signature::new(group.id(), Collective::Duplicate, "");
        let new = self.create(&signature, options, |session, context| {
            session.barrier(context)?;
            Ok(Some((0, (0..group.size()).collect(), 0)))
        })?;
        new.ok_or_else(|| Error::Internal("a rank has no part in a duplicate".into()))
    }
}

/// The part of a rank in a new group: the number of the group, its members, and its color.
type GroupPart = (usize, Vec<usize>, u64);

impl MpiCommunicator {
    /// Creates a group. `agree` returns once every rank has made the call, so that the split, which
    /// has no deadline in MPI, does not wait.
    fn create(
        &self,
        signature: &Signature,
        options: &CallOptions,
        agree: impl FnOnce(&Session, &CallContext<'_>) -> Result<Option<GroupPart>>,
    ) -> Result<Option<Box<dyn HostCommunicator>>> {
        let session = self.session();
        let (part, new, sequence) = self.make_call(signature, options, |_, context| {
            session.compare_calls(context)?;
            let part = agree(session, context)?;
            let rank = session.group.rank();
            let position = |(_, ranks, _): &GroupPart| ranks.iter().position(|other| *other == rank);
            let split = Split {
                color: part.as_ref().map(|(number, ..)| *number),
                key: part.as_ref().and_then(position).unwrap_or(0),
            };
            Ok((part, session.handle.split(split)?, context.sequence))
        })?;
        let (Some((_, ranks, color)), Some(handle)) = (part, new) else { return Ok(None) };
        let id = GroupId(Signature::fingerprint_of([session.group.id().0, sequence, color]));
        let group = session.group.subgroup(id, &ranks)?;
        let instance = Signature::fingerprint_of([session.instance, sequence, color]);
        Ok(Some(Box::new(Self::over(handle, (group, instance), session.config.clone()))))
    }
}
