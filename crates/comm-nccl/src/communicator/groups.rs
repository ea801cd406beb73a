//! Groups created from a group.

use comm_core::{
    Buffers, Call, CallOptions, Counts, GroupId, Groups, Invalid, Result, Signature, SplitRequest,
};

use super::NcclCommunicator;
use super::deadline::Deadline;
use super::engine::{Parts, Turn};
use crate::DeviceBuffer;
use crate::handle::{CommInit, Handle, NO_COLOR};
use crate::memory::{Cuda, DeviceCommunicator};

/// NCCL's colors are small numbers, so the ranks first exchange theirs to determine all groups.
impl Groups<Cuda> for NcclCommunicator {
    fn split(
        &self,
        color: Option<u64>,
        key: i64,
        options: &CallOptions,
    ) -> Result<Option<Box<dyn DeviceCommunicator>>> {
        let turn = self.engine.turn()?;
        let deadline = Deadline::after(options.timeout);
        let said = SplitRequest::new(color, key).to_words();
        let all = self.all_gather(&turn, &said, options)?;
        let Some(color) = color else {
            return self.create_group(&turn, None, deadline).map(|_nobody| None);
        };
        let members = SplitRequest::ranks_with(color, &all);
        let found = self.create_group(&turn, Some((&members, color)), deadline)?;
        Ok(found.map(|group| Box::new(group) as Box<dyn DeviceCommunicator>))
    }

    fn new_group(
        &self,
        ranks: &[usize],
        options: &CallOptions,
    ) -> Result<Option<Box<dyn DeviceCommunicator>>> {
        let position = self.engine.group.check_members(ranks)?;
        let turn = self.engine.turn()?;
        let deadline = Deadline::after(options.timeout);
        self.wait_idle(deadline)?;
        let found = self.create_group(&turn, position.map(|_| (ranks, 0)), deadline)?;
        Ok(found.map(|group| Box::new(group) as Box<dyn DeviceCommunicator>))
    }

    fn duplicate(&self, options: &CallOptions) -> Result<Box<dyn DeviceCommunicator>> {
        let everybody: Vec<usize> = (0..self.engine.group.size()).collect();
        let group = self.new_group(&everybody, options)?;
        group.ok_or_else(|| Invalid::Absent { rank: self.engine.group.rank() }.into())
    }
}

impl NcclCommunicator {
    /// Gathers the words of all ranks.
    fn all_gather(&self, turn: &Turn<'_>, said: &[u64], options: &CallOptions) -> Result<Vec<u64>> {
        let stream = &self.engine.stream;
        let send = DeviceBuffer::from_host(stream, said)?;
        let mut recv = DeviceBuffer::<u64>::zeros(stream, said.len() * self.engine.group.size())?;
        let mut plan = self.engine.plan();
        let recv_view = recv.view_mut();
        let buffers = Buffers::Separate { send: send.view(), recv: recv_view };
        self.checked(
            plan.collective(Call::AllGather { buffers, counts: Counts::Equal }, &CallOptions::default()),
        )?;
        let sequence = self.engine.enqueue(turn, plan, options)?;
        self.engine.wait(sequence, None)?;
        recv.to_vec()
    }

    /// Waits until no call is in flight, which NCCL requires before a group is created.
    pub(super) fn wait_idle(&self, deadline: Deadline) -> Result<()> {
        self.engine.wait(self.engine.last(), Some(deadline))
    }

    /// Creates a group of these members, or takes part in creating one that excludes this rank.
    fn create_group(
        &self,
        turn: &Turn<'_>,
        members: Option<(&[usize], u64)>,
        deadline: Deadline,
    ) -> Result<Option<Self>> {
        let (number, setup) = (self.engine.common_number(), self.engine.setup.clone());
        let Some((members, color)) = members else {
            self.divide(turn, deadline, |handle| handle.split(NO_COLOR, 0, setup))?;
            return Ok(None);
        };
        let rank = self.engine.group.rank();
        let position = members.iter().position(|&member| member == rank).unwrap_or(0);
        // The color is the lowest rank among the members, which is in no other group of this call.
        // The number of ranks was checked when the communicator was created.
        let first = members.iter().min().and_then(|&rank| i32::try_from(rank).ok()).unwrap_or(0);
        let child = self.divide(turn, deadline, |handle| handle.split(first, position, setup))?;
        child.map(|child| self.member(child, members, [number, color])).transpose()
    }

    pub(super) fn divide(
        &self,
        turn: &Turn<'_>,
        deadline: Deadline,
        begin: impl FnOnce(&Handle) -> Result<CommInit>,
    ) -> Result<Option<Handle>> {
        self.checked(self.engine.divide(turn, deadline, begin))
    }

    /// Returns the communicator of a group that contains this rank.
    pub(super) fn member(
        &self,
        handle: Handle,
        members: &[usize],
        [number, color]: [u64; 2],
    ) -> Result<Self> {
        let engine = &self.engine;
        let parent = engine.group;
        let id = GroupId(Signature::fingerprint_of([parent.id().0, number, color]));
        let mut config = engine.config.clone();
        config.group = parent.subgroup(id, members)?;
        let (library, setup) = (engine.library.clone(), engine.setup.clone());
        let control = engine.control.as_ref().and_then(|control| control.of_group(config.group, members));
        let stream = engine.device.new_stream()?;
        Self::over(Parts { library, stream, config, setup, handle, control })
    }
}
